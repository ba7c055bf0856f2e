/** Long texts in *Why alike?*: sentences are left out first, then the words that promise most. */

import { html, nothing } from '../core/html.js';
import { markedSpans } from '../core/marked-words.js';

/**
 * @typedef {import('../api/explanation.js').Explanation} Explanation
 * @typedef {import('../api/explanation.js').Shares} Shares
 */

/** Return losses for JSON, with null where none was computed. @param {Shares|null} shares */
export const plainLosses = (shares) =>
  shares?.spans?.map((spans, side) =>
    spans.map(({ start, end }, i) => {
      const loss = shares.worth[side][i];
      return { start, end, loss: Number.isNaN(loss) ? null : loss };
    }),
  ) ?? null;

/**
 * Say how much of long texts was left out.
 *
 * @param {Shares|null} sentences
 * @param {Shares|null} words
 */
export function covered(sentences, words) {
  if (!sentences) return nothing;
  const count = (/** @type {Shares} */ { worth }) => {
    const all = worth.flatMap((side) => [...side]);
    return `${all.filter((loss) => !Number.isNaN(loss)).length} of ${all.length}`;
  };
  return html`<p>Left out one at a time: ${count(sentences)} sentences${words ? `, and ${count(words)} words, those that promise most` : ''}.</p>`;
}

/**
 * Return the words of a text that were left out, the largest loss first.
 *
 * @param {Explanation} reply
 * @param {Shares|null} losses
 * @param {number} side
 */
export function removedWords({ texts }, losses, side) {
  if (!losses?.spans) return [];
  return markedSpans(texts[side].texts[0], losses.spans[side], losses.worth[side])
    .words.filter(({ value }) => value !== null)
    .sort((one, other) => Math.abs(other.value ?? 0) - Math.abs(one.value ?? 0))
    .map((word) => ({ ...word, before: ' ' }));
}
