"""Completion of hub names without an organisation, as in sentence-transformers."""

from __future__ import annotations

from model.sources.home import expanded
from model.sources.hub.repository import is_name

ORGANISATION = "sentence-transformers"
_ORIGINAL = """
albert-base-v1 albert-base-v2 albert-large-v1 albert-large-v2 albert-xlarge-v1 albert-xlarge-v2
albert-xxlarge-v1 albert-xxlarge-v2 bert-base-cased bert-base-cased-finetuned-mrpc
bert-base-chinese bert-base-german-cased bert-base-german-dbmdz-cased
bert-base-german-dbmdz-uncased bert-base-multilingual-cased bert-base-multilingual-uncased
bert-base-uncased bert-large-cased bert-large-cased-whole-word-masking
bert-large-cased-whole-word-masking-finetuned-squad bert-large-uncased
bert-large-uncased-whole-word-masking bert-large-uncased-whole-word-masking-finetuned-squad
camembert-base ctrl distilbert-base-cased distilbert-base-cased-distilled-squad
distilbert-base-german-cased distilbert-base-multilingual-cased distilbert-base-uncased
distilbert-base-uncased-distilled-squad distilbert-base-uncased-finetuned-sst-2-english
distilgpt2 distilroberta-base gpt2 gpt2-large gpt2-medium gpt2-xl openai-gpt roberta-base
roberta-base-openai-detector roberta-large roberta-large-mnli roberta-large-openai-detector
t5-11b t5-3b t5-base t5-large t5-small transfo-xl-wt103 xlm-clm-ende-1024 xlm-clm-enfr-1024
xlm-mlm-100-1280 xlm-mlm-17-1280 xlm-mlm-en-2048 xlm-mlm-ende-1024 xlm-mlm-enfr-1024
xlm-mlm-enro-1024 xlm-mlm-tlm-xnli15-1024 xlm-mlm-xnli15-1024 xlm-roberta-base
xlm-roberta-large xlm-roberta-large-finetuned-conll02-dutch
xlm-roberta-large-finetuned-conll02-spanish xlm-roberta-large-finetuned-conll03-english
xlm-roberta-large-finetuned-conll03-german xlnet-base-cased xlnet-large-cased
"""
ORIGINAL = frozenset(_ORIGINAL.split())
"""Names of transformers' first models, which exist on the hub without an organisation."""


def full_name(name: str) -> str:
    """Return a name completed with its organisation; a local folder or file stays as it is.

    Args:
        name: a model as an operator gives it, such as `all-MiniLM-L6-v2` or `all-MiniLM-L6-v2@v1`.

    """
    own = name.partition("@")[0]
    if "/" in own or own in ORIGINAL or not is_name(own) or expanded(name).exists():
        return name
    return f"{ORGANISATION}/{name}"
