/**
 * Units of a map's rows and columns: tokens, or words of several tokens.
 *
 * @typedef {{label: string, name: string, tokens: number[], segment: number, special: boolean}} Unit
 *   `name` is the label, numbered from the second one on: the, the (2)
 * @typedef {{tokens: string[], offsets: number[][], segments: number[], texts: string[]}} Tokenized
 *   `texts` are the caller's, one a segment; offsets count their code points
 */

import { memo } from './memo.js';

const WORDY = /[\p{L}\p{N}\p{M}]/u;
const IDEOGRAPH = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]/u;

/**
 * Return whether a token has no place in the text, as special tokens and tokens of a prompt.
 *
 * @param {number[]} offset
 */
export const isSpecial = ([start, end]) => start === end;

/**
 * Return the number of the text that each token is from. Tokenizers of RoBERTa, XLM-RoBERTa and MPNet give
 * both texts of a pair the segment 0. The second text then begins after the last but one separator, with
 * which a pair ends; without separators it begins where offsets go back or exceed the first text.
 *
 * @param {Tokenized} text with the segments of the reply
 * @returns {number[]}
 */
export function placesOf({ tokens, offsets, segments, texts }) {
  if (texts.length < 2 || segments.includes(1)) return segments;
  const ends = separators(tokens, offsets);
  const second = ends.length > 1 ? ends[ends.length - 2] + 1 : goesBack(offsets, Array.from(texts[0]).length);
  return tokens.map((_, i) => Number(second >= 0 && i >= second));
}

/**
 * Return the places of the separators: special tokens with the name of the last token.
 *
 * @param {string[]} tokens
 * @param {number[][]} offsets
 */
export const separators = (tokens, offsets) =>
  [...tokens.keys()].filter((i) => tokens[i] === tokens.at(-1) && offsets[i][1] === 0);

/**
 * Return the first token whose offsets go back or exceed the text, or −1.
 *
 * @param {number[][]} offsets
 * @param {number} length
 */
function goesBack(offsets, length) {
  let before = [0, 0];
  return offsets.findIndex(([start, end]) => {
    if (start === end) return false;
    const back = start < before[0] || (start === before[0] && end < before[1]);
    before = [start, end];
    return back || end > length;
  });
}

/** Return the label of a token. @param {string} token @param {string} piece of the text */
function labelOf(token, piece) {
  const shown = piece !== '' && isOfBytes(token, piece) ? piece.trimStart() || piece : token;
  return visible(/^▁+$/.test(shown) ? shown.replaceAll('▁', ' ') : shown);
}

/** Whitespace with a sign that shows it. */
const VISIBLE = { '\n': '⏎', '\r': '⏎', '\t': '⇥', ' ': '␣', '\u00a0': '␣', '\u3000': '␣' };

/** Show a label of whitespace alone, and line breaks in any label. @param {string} label */
function visible(label) {
  const shown = label.replace(/\r\n|[\n\r]/g, VISIBLE['\n']);
  return /^\s+$/u.test(shown)
    ? shown.replace(/\s/gu, (sign) => VISIBLE[/** @type {' '} */ (sign)] ?? '␣')
    : shown;
}

/**
 * Characters that stand for bytes in the vocabularies of byte-level tokenizers, by byte (bytes_to_unicode of
 * GPT-2, Radford et al. 2019): printable bytes stand for themselves, the others follow from U+0100 on.
 */
const BYTES = (() => {
  const isPrintable = (/** @type {number} */ byte) =>
    (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte !== 0xad);
  let others = 0x100;
  /** @type {Map<string, number>} */
  const bytes = new Map();
  for (let byte = 0; byte < 0x100; byte += 1)
    bytes.set(String.fromCharCode(isPrintable(byte) ? byte : others++), byte);
  return bytes;
})();

/**
 * Return whether a token is written in bytes of its piece of the text, as byte-level tokenizers and the byte
 * fallback of SentencePiece (`<0xE2>`) write it.
 *
 * @param {string} token
 * @param {string} piece
 */
function isOfBytes(token, piece) {
  if (/^<0x[0-9A-F]{2}>$/.test(token)) return true;
  const bytes = Array.from(token, (sign) => BYTES.get(sign));
  if (bytes.includes(undefined)) return false;
  const joined = (/** @type {(number|undefined)[]|Uint8Array} */ some) => Array.from(some).join();
  const inside = new TextEncoder().encode(` ${piece}`);
  return `,${joined(inside)},`.includes(`,${joined(bytes)},`);
}

/** Return the text of each token in the caller's texts. @param {Tokenized} text */
function piecesOf({ texts, offsets, segments }) {
  const points = texts.map((part) => Array.from(part));
  return offsets.map(([start, end], i) => points[segments[i]].slice(start, end).join(''));
}

/** Return the writing direction of a text by its first letter. @param {string} text @returns {'rtl'|'ltr'} */
export const directionOf = (text) =>
  /^[^\p{L}]*[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u.test(text)
    ? 'rtl'
    : 'ltr';

/**
 * @param {Tokenized} text
 * @returns {Unit[]} one a token, which is shown as its piece of the text where it is written in bytes
 */
export function tokenUnits(text) {
  const pieces = piecesOf(text);
  return text.tokens.map((token, i) => ({
    label: labelOf(token, pieces[i]),
    name: token,
    tokens: [i],
    segment: text.segments[i],
    special: isSpecial(text.offsets[i]),
  }));
}

/**
 * Merge tokens that touch in the text into words. Punctuation at the ends of such a run stands alone; inside
 * it (didn't, open-source) it belongs to the word. An ideograph is a word, with the pieces that continue it.
 *
 * @param {Tokenized} text
 * @returns {Unit[]}
 */
export function wordUnits(text) {
  const pieces = piecesOf(text);
  /** @type {Unit[]} */
  const units = [];
  for (const run of runs(text, pieces)) {
    const wordy = run.map((token) => WORDY.test(pieces[token]));
    const [first, last] = [wordy.indexOf(true), wordy.lastIndexOf(true)];
    run.forEach((token, place) => {
      const inside = first >= 0 && place > first && place <= last;
      const ideographs =
        place > 0 && (IDEOGRAPH.test(pieces[token]) || IDEOGRAPH.test(pieces[run[place - 1]]));
      if (place > 0 && (continues(text.tokens[token]) || (inside && !ideographs))) {
        const unit = units[units.length - 1];
        unit.tokens.push(token);
        unit.label += pieces[token];
      } else {
        const special = isSpecial(text.offsets[token]);
        units.push({
          name: '',
          label: special ? text.tokens[token] : pieces[token],
          tokens: [token],
          segment: text.segments[token],
          special,
        });
      }
    });
  }
  return units;
}

/** Return whether a WordPiece token continues a word. @param {string} token */
const continues = (token) => token.startsWith('##');

/**
 * Return the runs of tokens that touch each other in the text.
 *
 * @param {Tokenized} text
 * @param {string[]} pieces
 */
function runs(text, pieces) {
  /** @type {number[][]} */
  const found = [];
  text.offsets.forEach((offset, i) => {
    const before = text.offsets[i - 1];
    const touches =
      i > 0 &&
      !isSpecial(offset) &&
      !isSpecial(before) &&
      text.segments[i] === text.segments[i - 1] &&
      (continues(text.tokens[i]) || (before[1] === offset[0] && !/^\s/u.test(pieces[i])));
    if (touches) found[found.length - 1].push(i);
    else found.push([i]);
  });
  return found;
}

/** @param {Unit} unit @returns {Unit} with whitespace that can be seen */
const shown = (unit) => ({ ...unit, label: visible(unit.label) });

/**
 * @param {Tokenized} text
 * @param {{words: boolean, bare: boolean}} options
 * @returns {Unit[]}
 */
export const unitsOf = (text, { words, bare }) => made(text, words, bare);

const made = memo(
  (/** @type {Tokenized} */ text, /** @type {boolean} */ words, /** @type {boolean} */ bare) => {
    const units = numbered(words ? wordUnits(text).map(shown) : tokenUnits(text));
    const kept = bare ? units.filter((unit) => !unit.special) : units;
    return kept.length ? kept : units;
  },
  12,
);

/**
 * Set the name of each unit: its label, with a number from its second occurrence on.
 *
 * @param {Unit[]} units
 */
function numbered(units) {
  const seen = new Map();
  for (const unit of units) {
    const times = (seen.get(unit.label) ?? 0) + 1;
    seen.set(unit.label, times);
    unit.name = times > 1 ? `${unit.label} (${times})` : unit.label;
  }
  return units;
}
