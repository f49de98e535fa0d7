"""The traces of the Fisher matrix and the Hessian: estimators, their errors and their contrasts."""
