"""The lists of names equal transformers' own."""

from __future__ import annotations

import re

import transformers
from transformers.models.auto import tokenization_auto

from model.tokenization.classes import CLASSES
from model.tokenization.names import AS_STORED, BACKENDS, MODEL_TYPES, NOT_BUILT, OVERRULING
from tests.model.tokenizer_folders import CLASSES as FOLDERS

NAMES = {
    name.removesuffix("Fast")
    for name in (*dir(transformers), *tokenization_auto.TOKENIZER_MAPPING_NAMES.values())
    if name and re.search(r"Tokenizer(Fast)?$", name)
}


def test_every_name_that_transformers_has_is_known() -> None:
    assert NAMES - CLASSES.keys() - BACKENDS == NOT_BUILT


def test_names_of_one_class_are_its_names_in_transformers_too() -> None:
    named = [name for name in FOLDERS if name != AS_STORED]
    for name, ours in CLASSES.items():
        (first,) = [other for other in named if CLASSES[other] is ours] or [name]
        theirs = tokenization_auto.tokenizer_class_from_name(name)
        assert theirs is getattr(transformers, first), name


def test_names_of_the_backend() -> None:
    for name in BACKENDS:
        for full in (name, f"{name}Fast"):
            found = tokenization_auto.tokenizer_class_from_name(full)
            assert found is None or found.__name__ in ("PythonBackend", AS_STORED)


def test_the_class_of_each_model_type() -> None:
    theirs = tokenization_auto.TOKENIZER_MAPPING_NAMES
    assert {model_type: theirs[model_type] for model_type in MODEL_TYPES} == MODEL_TYPES


def test_model_types_whose_class_stands() -> None:
    overruling = tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    assert overruling >= OVERRULING
    assert overruling & MODEL_TYPES.keys() == OVERRULING - {"camembertv2-base"}
