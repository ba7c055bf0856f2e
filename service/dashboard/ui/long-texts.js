/** Long texts in *Why alike?*: sentences are left out first, then the words that promise most. */

import { bdi, html, nothing, share } from '../core/html.js';
import { fixed } from '../core/numbers.js';

/**
 * @typedef {import('../api/explanation.js').Explanation} Explanation
 * @typedef {import('../api/explanation.js').Shares} Shares
 */

/** Number of tokens of both texts from which on sentences come first, and words of the strongest. */
const LONG = 300;
const TEXTS = ['Text', 'Other text'];

/** Whether sentences are left out before words. @param {Explanation} reply */
export const isLong = ({ texts: [a, b] }) => a.tokens.length + b.tokens.length > LONG;

/** Return losses for JSON, with null where none was computed. @param {Shares|null} shares */
export const plainLosses = (shares) =>
  shares?.spans?.map((spans, side) =>
    spans.map(({ start, end }, i) => {
      const loss = shares.worth[side][i];
      return { start, end, loss: Number.isNaN(loss) ? null : loss };
    }),
  ) ?? null;

/**
 * Say how much of long texts was left out, and name the words that were.
 *
 * @param {Explanation} reply
 * @param {Shares|null} sentences
 * @param {Shares|null} words
 * @param {unknown} wait what is said until the words have come
 */
export function covered(reply, sentences, words, wait) {
  if (!sentences) return nothing;
  const count = (/** @type {Shares} */ { worth }) => {
    const all = worth.flatMap((side) => [...side]);
    return `${all.filter((loss) => !Number.isNaN(loss)).length} of ${all.length}`;
  };
  const found = words && plainLosses(words);
  return html`<p>Left out one at a time: ${count(sentences)} sentences${words ? `, and ${count(words)} words, those that promise most` : ''}.</p>
    ${found ? found.map((losses, side) => wordList(reply, losses, side)) : html`<p>${wait}</p>`}<h3>Sentences</h3>`;
}

/**
 * Words of a text that were left out, the largest loss first.
 *
 * @param {Explanation} reply
 * @param {{start: number, end: number, loss: number|null}[]} losses
 * @param {number} side
 */
function wordList({ texts }, losses, side) {
  const points = Array.from(texts[side].texts[0]);
  const known = losses.flatMap(({ start, end, loss }) =>
    loss === null ? [] : [{ word: points.slice(start, end).join(''), loss }],
  );
  known.sort((one, other) => Math.abs(other.loss) - Math.abs(one.loss));
  const most = Math.max(Math.abs(known[0]?.loss ?? 0), 1e-9);
  return html`<h3>${TEXTS[side]}: words</h3>
    <ul class="marked" aria-label=${`${TEXTS[side]}, strongest words`}>${known.map(
      ({
        word,
        loss,
      }) => html`<li class=${loss < 0 ? 'less' : ''} .style=${share(Math.abs(loss) / most)}>${bdi(word)}
        <span class="number">${fixed(loss, 3)}</span></li>`,
    )}</ul>`;
}
