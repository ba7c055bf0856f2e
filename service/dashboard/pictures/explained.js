/**
 * Shares of a similarity by side: words of a text, or patches of a picture.
 *
 * @typedef {import('../api/explanation.js').Explained} Explained
 * @typedef {import('../api/explanation.js').Shares} Shares
 * @typedef {import('../api/explanation.js').Span} Span
 * @typedef {{side: number, tokens: number[], name: string}} Selected word or patch, whose pairs are shown
 */

import { markedSpans, markedText } from '../core/marked-words.js';

/** The most squares that a picture is divided into, about. */
const SQUARES = 50;

/** Return the patches along the edge of a square, so that few squares have to be removed. @param {Explained[]} texts */
export function blockOf(texts) {
  const patches = texts.map(({ view }) => (view ? view.grid[0] * view.grid[1] : 0));
  return Math.max(1, Math.ceil(Math.sqrt(Math.max(...patches) / SQUARES)));
}

/** Return the number of special tokens of a picture. @param {Explained} text */
export const specialsIn = ({ tokens, view }) => (view ? tokens.length - view.grid[0] * view.grid[1] : 0);

/**
 * Return the value of each token of a side; NaN where it is not known. A patch has the loss of its square.
 *
 * @param {Shares} shares
 * @param {number} side
 * @param {Explained[]} texts
 * @param {Selected|null} selected of the other side, whose shares with each token are returned
 * @returns {Float32Array}
 */
export function tokenValues(shares, side, texts, selected) {
  const size = texts[side].tokens.length;
  if (shares.spans) {
    const values = new Float32Array(size).fill(Number.NaN);
    shares.spans[side].forEach(({ tokens }, i) => {
      for (const token of tokens) values[token] = shares.worth[side][i];
    });
    return values;
  }
  const { pairs } = shares;
  if (!pairs || !selected || selected.side === side) return shares.worth[side];
  const columns = texts[1].tokens.length;
  return Float32Array.from({ length: size }, (_, token) =>
    selected.tokens.reduce(
      (sum, other) => sum + (side === 0 ? pairs[token * columns + other] : pairs[other * columns + token]),
      0,
    ),
  );
}

/**
 * Return the words of a text with their values.
 *
 * @param {Shares|null} shares
 * @param {number} side
 * @param {Explained[]} texts
 * @param {Selected|null} selected
 */
export function wordsOf(shares, side, texts, selected) {
  const { tokens, offsets, texts: names } = texts[side];
  if (shares?.spans) return markedSpans(names[0], shares.spans[side], shares.worth[side]);
  const values = shares ? tokenValues(shares, side, texts, selected) : undefined;
  return markedText(names[0], { tokens, offsets, unknown: [], shares: values }, true);
}
