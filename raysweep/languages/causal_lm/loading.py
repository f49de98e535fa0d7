"""A causal LM from the Hugging Face hub or a folder: its weights, its tokenizer, and checks of both.

Weights come from safetensors files, or, where a model has none, from PyTorch's own files through
`torch.load(weights_only=True)`, which runs no code of the file.  The code of a repository is never run.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from raysweep.errors import ConfigError, DataError
from raysweep.languages.quiet import quiet

_SAFE = "model*.safetensors"
_TORCH = "pytorch_model*.bin"

#: Fields of a model's configuration on its origin and training, which do not change what it computes.
_NO_CONTENT = {
    *("transformers_version", "_name_or_path", "architectures", "dtype", "torch_dtype", "use_cache"),
    *("dropout", "attention_dropout", "activation_dropout", "layerdrop", "init_std", "initializer_range"),
    *("embd_pdrop", "attn_pdrop", "resid_pdrop", "hidden_dropout", "classifier_dropout", "prefix"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "task_specific_params", "_attn_implementation"),
}


@dataclass(frozen=True, eq=False)
class Source:
    """A loaded model (float32, on the CPU, in evaluation mode) with its tokenizer and the name it goes by."""

    name: str
    model: Any
    tokenizer: Any

    @property
    def config(self) -> Any:
        """The configuration of the model's text decoder."""
        return self.model.config.get_text_config()

    @property
    def special(self) -> set[int]:
        """Ids of the tokenizer's special tokens."""
        return set(self.tokenizer.all_special_ids)

    @cached_property
    def tokenizer_digest(self) -> str:
        """sha256 of all that decides how the tokenizer writes texts."""
        return _of_tokenizer(self.tokenizer)

    @cached_property
    def digest(self) -> bytes:
        """sha256 over architecture and weights, whatever folder or file format they came from."""
        kept = {k: v for k, v in self.config.to_diff_dict().items() if k not in _NO_CONTENT}
        total = hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            total.update(f"\0{name}{tuple(tensor.shape)}{tensor.dtype}\0".encode())
            total.update(memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()))
        return total.digest()


def _of_tokenizer(tokenizer: Any) -> str:
    """Return the sha256 of all that decides how a tokenizer writes texts."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None:
        content: Any = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    else:
        content = json.loads(inner.to_str())
        # Each call of the tokenizer sets them.
        del content["padding"], content["truncation"]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def load(name: str, revision: str | None = None) -> Source:
    """Load a causal LM and its tokenizer from folder `name`, or from the hub.

    Raises `DataError` saying what is missing and what to do.
    """
    import transformers

    folder = Path(name) if os.path.isdir(name) else _downloaded(name, revision)
    if not (folder / "config.json").is_file():
        raise DataError(
            f"model: there is no config.json in {folder}, so no model; give a folder made by "
            f"`model.save_pretrained` and `tokenizer.save_pretrained`"
        )
    if not any(folder.glob(_SAFE)) and not any(folder.glob(_TORCH)):
        raise DataError(f"model: there are no weights ({_SAFE} or {_TORCH}) in {folder}")
    with quiet():
        try:
            loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                weights_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        # Transformers and the file formats raise errors of many classes, all about what is in the folder.
        except Exception as error:
            raise DataError(
                f"model: {folder} holds no causal LM that can be loaded: {_first(error)}"
            ) from error
        model, report = loaded
        missing = sorted(str(key) for key in (*report["missing_keys"], *report["mismatched_keys"]))
        if missing:
            raise DataError(
                f"model: the weights in {folder} are not those of a {type(model).__name__}: {len(missing)} "
                f"missing or of another shape, such as {missing[0]}"
            )
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            # Without its files, transformers makes one that knows no word.
            if len(tokenizer) <= len(tokenizer.all_special_ids):
                raise DataError("it has no tokens")
        except Exception as error:
            raise DataError(
                f"model: {folder} holds no tokenizer that can be loaded: {_first(error)}; "
                f"add one with `tokenizer.save_pretrained`"
            ) from error
    return Source(name=name, model=model.eval().requires_grad_(False), tokenizer=tokenizer)


def beginning(source: Source, token: str | None) -> int:
    """Return the id of the token that sentences begin with: `token`, else the model's or tokenizer's own.

    Raises `ConfigError` where there is none.
    """
    tokenizer = source.tokenizer
    if token is not None:
        # An unknown token would otherwise become the tokenizer's id for unknown text.
        if token not in tokenizer.get_vocab():
            raise ConfigError(f"bos: '{token}' is no token of {source.name}")
        found = tokenizer.convert_tokens_to_ids(token)
    else:
        found = source.config.bos_token_id
        if found is None:
            found = tokenizer.bos_token_id
        if found is None:
            end = f", such as '{tokenizer.eos_token}'" if tokenizer.eos_token else ""
            raise ConfigError(
                f"bos: {source.name} names no token for the beginning of a text; set bos to one of its "
                f"tokens{end}"
            )
    if not 0 <= found < source.config.vocab_size:
        raise ConfigError(
            f"bos: token {found} is outside the model's vocabulary of {source.config.vocab_size}; set bos to "
            f"one of its tokens"
        )
    return int(found)


def check_length(source: Source, length: int) -> None:
    """Raise `ConfigError` for sentences longer than the model can read."""
    positions = getattr(source.config, "max_position_embeddings", None)
    if positions is not None and length > positions:
        raise ConfigError(
            f"length: {length} words, but {source.name} reads {positions} positions; use at most {positions}"
        )


def head(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Return weight [V, D] and bias of the model's output layer, or None where it is not linear."""
    layer = model.get_output_embeddings()  # type: ignore[operator]
    return (layer.weight, layer.bias) if isinstance(layer, nn.Linear) else None


def _downloaded(name: str, revision: str | None) -> Path:
    """Return the local snapshot of a model on the hub, downloaded where it is not there yet."""
    from huggingface_hub import errors, snapshot_download

    def fetch(*patterns: str) -> Path:
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=list(patterns), ignore_patterns=["*/*"])
        )

    at = "" if revision is None else f" at revision '{revision}'"
    try:
        folder = fetch("*.json", "*.txt", "*.model", _SAFE)
        if not any(folder.glob(_SAFE)):
            folder = fetch("*.json", "*.txt", "*.model", _TORCH)
        return folder
    except errors.RevisionNotFoundError as error:
        raise DataError(f"revision: '{name}' has no revision '{revision}' on the Hugging Face hub") from error
    except errors.GatedRepoError as error:
        raise DataError(
            f"model: '{name}' is gated; accept its terms on its page and log in with `hf auth login`"
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise DataError(
            f"model: there is no folder '{name}' and no such model on the Hugging Face hub"
        ) from error
    # Behind the narrower ones above, which are network errors too.
    except (OSError, errors.HfHubHTTPError) as error:
        raise DataError(
            f"model: '{name}'{at} is no local folder, not among the downloaded models, and the Hugging Face "
            f"hub cannot be reached from here; copy the model to this machine and give its folder"
        ) from error


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
