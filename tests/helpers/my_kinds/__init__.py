"""A plug-in: a language, a model, an algorithm and an evaluation, in a file each."""

#: The entry points of the plug-in, as its pyproject.toml would have them: a line for each kind.
ENTRY_POINTS = """\
[raysweep.language]
dice = my_kinds.dice:DiceConfig
[raysweep.model]
bag = my_kinds.bag:BagConfig
[raysweep.algorithm]
sign = my_kinds.sign:SignConfig
[raysweep.evaluation]
sharpest = my_kinds.sharpest:SharpestConfig
"""
