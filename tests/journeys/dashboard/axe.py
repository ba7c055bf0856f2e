"""Accessibility checks of a page by axe-core.

Vendored for these tests only: `axe.min.js` of the npm package axe-core 4.14.1, unchanged, under
the Mozilla Public License 2.0 (beside it); the package's integrity is
sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from playwright.sync_api import Page

FILE = Path(__file__).parent / "axe-core" / "axe.min.js"
SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
NAMES = "label-content-name-mismatch"
"""Rule that an element's visible label is part of its accessible name; it is off by default."""
COLOURS = "color-contrast"
RUN = """async ([more, only]) => {
  for (const one of document.getAnimations()) one.finish();
  const rules = more && {[more]: {enabled: true}};
  const runOnly = only && {type: 'rule', values: [only]};
  const asked = {...(rules && {rules}), ...(runOnly && {runOnly}), resultTypes: ['violations']};
  const {violations, passes} = await axe.run(document, asked);
  if (!passes.length) throw new Error('axe looked at nothing');
  return violations.flatMap(({id, nodes}) => nodes.map(({html}) => `${id}: ${html.slice(0, 160)}`));
}"""


@functools.cache
def source() -> str:
    """Return axe-core's source, and check its digest."""
    content = FILE.read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256
    return content.decode()


def violations(page: Page, only: str = "") -> list[str]:
    """Return the page's violations of every rule, or of one rule."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(source())
    return page.evaluate(RUN, ["" if only else NAMES, only])
