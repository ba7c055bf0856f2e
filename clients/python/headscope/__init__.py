from headscope.async_client import AsyncClient
from headscope.client import Client, attention, attentions
from headscope.display import HeatMap
from headscope.errors import (
    DeadlineExceeded,
    Failed,
    HeadscopeError,
    InvalidReply,
    NoConnection,
    NotFound,
    Overloaded,
    Refused,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from headscope.explanation import Explanation, OccludedBlock, OccludedSpan, TokenMatch, WordPair
from headscope.head_scores import HeadScores
from headscope.ranking import Contrast, RankedDocument, Ranking, WithoutWord, WordDifference
from headscope.reply import Reply
from headscope.results import Encoding, Encodings, Label, Rank, Span, SparseVector, Target
from headscope.sending import Retries, TextWarning, Warnings
from headscope.service_results import Difference, Info, ServedModel, Verification
from headscope.tokens import Tokens
from headscope.words import Word, merge, words_of

__all__ = [
    "AsyncClient",
    "Client",
    "Contrast",
    "DeadlineExceeded",
    "Difference",
    "Encoding",
    "Encodings",
    "Explanation",
    "Failed",
    "HeadScores",
    "HeadscopeError",
    "HeatMap",
    "Info",
    "InvalidReply",
    "Label",
    "NoConnection",
    "NotFound",
    "OccludedBlock",
    "OccludedSpan",
    "Overloaded",
    "Rank",
    "RankedDocument",
    "Ranking",
    "Refused",
    "Reply",
    "Retries",
    "ServedModel",
    "Span",
    "SparseVector",
    "Target",
    "TextWarning",
    "TokenMatch",
    "Tokens",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "Verification",
    "Warnings",
    "WithoutWord",
    "Word",
    "WordDifference",
    "WordPair",
    "attention",
    "attentions",
    "merge",
    "words_of",
]
