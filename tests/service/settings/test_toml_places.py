"""Places of keys in TOML, beside what `tomllib` reads."""

from __future__ import annotations

import time
import tomllib

from service.settings.sources import places_of

DOCUMENT = '''# port = 1
port = 80 # x = 2
  text = """ a = 1
[b]
x = 2 """""
list = [ 1, # c = 3
 {k = 1, "q.z" = [1, 2]}, 'x] = ]' ]
day = 1979-05-27 07:32:00
[alias]
prod = { a = 0.5, "b \\" c" = 0.5 }
"x=y" = 'z'
[ model . "a/b" ] # [no]
max-length = 3
prompts.query = "q: "
[model.b]
[[list-of]]
u = \'\'\'x = 1'\'\'\'
'''


def test_the_time_grows_with_the_keys() -> None:
    """40 times the keys take less than 160 times as long; counting lines took 1,600 times."""

    def seconds(text: str) -> float:
        began = time.thread_time()
        places_of(text)
        return time.thread_time() - began

    lines = {count: "".join(f"key-{n} = 1\n" for n in range(count)) for count in (500, 20_000)}
    inline = {count: text.strip().replace("\n", ", ") for count, text in lines.items()}
    for texts in (lines, {count: f"a = {{{text}}}" for count, text in inline.items()}):
        least = [min(seconds(text) for _ in range(3)) for text in texts.values()]
        assert least[1] < 160 * least[0]


def test_each_key_has_its_line_and_column() -> None:
    assert places_of(DOCUMENT) == {
        ("port",): (2, 1),
        ("text",): (3, 3),
        ("list",): (6, 1),
        ("list", "k"): (7, 3),
        ("list", "q.z"): (7, 10),
        ("day",): (8, 1),
        ("alias",): (9, 1),
        ("alias", "prod"): (10, 1),
        ("alias", "prod", "a"): (10, 10),
        ("alias", "prod", 'b " c'): (10, 19),
        ("alias", "x=y"): (11, 1),
        ("model",): (12, 1),
        ("model", "a/b"): (12, 1),
        ("model", "a/b", "max-length"): (13, 1),
        ("model", "a/b", "prompts"): (14, 1),
        ("model", "a/b", "prompts", "query"): (14, 1),
        ("model", "b"): (15, 1),
        ("list-of",): (16, 1),
        ("list-of", "u"): (17, 1),
    }
    parsed = tomllib.loads(DOCUMENT)
    assert parsed.keys() == {key for key, *inner in places_of(DOCUMENT) if not inner}
