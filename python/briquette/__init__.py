"""Reads the models that the command `briquette` writes.

    import briquette

    arrays = briquette.load("out/small")             # numpy arrays by tensor name
    state = briquette.load_state_dict("out/small")   # torch tensors by parameter name

Values equal those of `briquette export OUT --to dense`, bit for bit. Needs numpy and safetensors; `load_state_dict` needs torch too.
"""

from briquette._error import FormatError
from briquette._load import load, load_state_dict
from briquette._manifest import manifest

__all__ = ["FormatError", "load", "load_state_dict", "manifest"]
