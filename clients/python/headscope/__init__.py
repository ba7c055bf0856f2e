from headscope.client import attention, attentions
from headscope.errors import HeadscopeError
from headscope.reply import Reply
from headscope.words import Word, merge, words_of

__all__ = ["HeadscopeError", "Reply", "Word", "attention", "attentions", "merge", "words_of"]
