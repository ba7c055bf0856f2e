/** Both sides of an explanation: a picture with its shares over it, or a text word by word. */

import { html, nothing } from '../core/html.js';
import { markedSpans, markedText as markedWords } from '../core/marked-words.js';
import { fixed } from '../core/numbers.js';
import { markedScene } from '../draw/marked-text.js';
import { markedText } from '../ui/marked-text.js';
import { pictureScene } from './drawing.js';
import { pictureOf } from './files.js';
import { patchName } from './tokens.js';
import './picture-map.js';

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {import('../core/state.js').State} State
 * @typedef {import('../api/explanation.js').Explanation} Reply
 * @typedef {import('../api/explanation.js').Shares} Shares
 * @typedef {import('../api/explanation.js').Explained} Explained
 * @typedef {{side: number, tokens: number[], name: string}} Selected word or patch, whose pairs are shown
 */

const ROOM = 420;

/**
 * @param {Store} store
 * @param {Reply} reply
 * @param {Shares|null} shares
 * @param {number} side
 * @param {{selected: Selected|null, select: (selected: Selected) => void}} choice
 */
export function sideOf(store, reply, shares, side, { selected, select }) {
  const shown = selected && selected.side !== side ? `, with ${selected.name}` : '';
  const name = `${reply.texts[side].view ? 'Picture' : 'Text'}${reply.texts[0].view && reply.texts[1].view ? ` ${side + 1}` : ''}`;
  const body = reply.texts[side].view
    ? pictureSide(store.state, reply, shares, side, { selected, select, name })
    : wordsSide(reply, shares, side, { selected, select, name });
  return html`<section aria-label=${name}><h3>${name}${shown}</h3>${body}</section>`;
}

/**
 * @param {State} state
 * @param {Reply} reply
 * @param {Shares|null} shares
 * @param {number} side
 * @param {Selected|null} selected
 * @returns {import('./drawing.js').Drawn}
 */
function drawnSide({ opacity, smooth }, { texts }, shares, side, selected) {
  const { view, texts: names } = texts[side];
  const specials = specialsIn(texts[side]);
  const layer = shares && signedLayer(tokenValues(shares, side, texts, selected).subarray(specials));
  return {
    picture: pictureOf(names[0]),
    view: /** @type {import('./geometry.js').View} */ (view),
    layer,
    opacity,
    smooth: smooth && !shares?.spans,
    from: selected?.side === side ? selected.tokens[0] - specials : -1,
    to: -1,
  };
}

/** Return values as a layer of negative and positive colours. @param {Float32Array} values @returns {import('./drawing.js').Layer} */
function signedLayer(values) {
  const known = values.map((value) => (Number.isNaN(value) ? 0 : value));
  const full = known.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-9);
  return { values: known, full, keys: 1, linear: true, signed: true };
}

/**
 * @param {State} state
 * @param {Reply} reply
 * @param {Shares|null} shares
 * @param {number} side
 * @param {{selected: Selected|null, select: (selected: Selected) => void, name: string}} choice
 */
function pictureSide(state, reply, shares, side, { selected, select, name }) {
  const drawn = drawnSide(state, reply, shares, side, selected);
  const specials = specialsIn(reply.texts[side]);
  const values = shares && tokenValues(shares, side, reply.texts, selected);
  const data = {
    ...drawn,
    label: name,
    tall: ROOM,
    moves: drawn.from,
    shifts: -1,
    says: values ? (/** @type {number} */ patch) => fixedOrNone(values[patch + specials]) : null,
  };
  const choose = (/** @type {CustomEvent<import('./picture-map.js').Choice>} */ { detail: { patch } }) => {
    if (shares?.pairs) select({ side, tokens: [patch + specials], name: patchName(drawn.view, patch) });
  };
  const special = values?.subarray(0, specials).reduce((sum, value) => sum + value, 0);
  return html`<picture-map .data=${data} @choose=${choose}></picture-map>
    ${shares && !shares.spans && specials ? html`<p class="says">Special tokens: ${fixed(special ?? 0, 4)}</p>` : nothing}`;
}

/** @param {number} value */
const fixedOrNone = (value) => (Number.isNaN(value) ? 'not removed' : fixed(value, 4));

/**
 * @param {Reply} reply
 * @param {Shares|null} shares
 * @param {number} side
 * @param {{selected: Selected|null, select: (selected: Selected) => void, name: string}} choice
 */
function wordsSide(reply, shares, side, { selected, select, name }) {
  return markedText({
    label: `${name}, word by word`,
    marked: wordsOf(shares, side, reply.texts, selected),
    chosen: 'chosen',
    isChosen: ({ tokens }) => selected?.side === side && selected.tokens[0] === tokens[0],
    pick: shares?.pairs ? ({ tokens, label }) => select({ side, tokens, name: `“${label}”` }) : undefined,
  });
}

/** @param {Reply} reply @param {number} side */
export const nameOfSide = ({ texts }, side) =>
  texts[side].view ? pictureOf(texts[side].texts[0]).label : texts[side].texts[0];

/**
 * @param {State} state
 * @param {Reply} reply
 * @param {Shares|null} shares
 * @param {number} side
 * @param {Selected|null} selected
 */
export function sceneOf(state, reply, shares, side, selected) {
  if (!reply.texts[side].view) {
    const { words, specials } = wordsOf(shares, side, reply.texts, selected);
    return markedScene([...words, ...specials]);
  }
  return pictureScene(drawnSide(state, reply, shares, side, selected), [ROOM, ROOM]);
}

/** @param {Reply} reply @param {Shares|null} shares @param {number} side */
export function sideJson(reply, shares, side) {
  const { tokens, view } = reply.texts[side];
  const plain = (/** @type {number} */ value) => (Number.isNaN(value) ? null : Number(value.toPrecision(8)));
  const values = shares ? [...tokenValues(shares, side, reply.texts, null)].map(plain) : null;
  return { tokens, ...view, values };
}

/** The most squares that a picture is divided into, about. */
const SQUARES = 50;

/** Return the patches along the edge of a square, so that few squares have to be removed. @param {Explained[]} texts */
export function blockOf(texts) {
  const patches = texts.map(({ view }) => (view ? view.grid[0] * view.grid[1] : 0));
  return Math.max(1, Math.ceil(Math.sqrt(Math.max(...patches) / SQUARES)));
}

/** Return the number of special tokens of a picture. @param {Explained} text */
const specialsIn = ({ tokens, view }) => (view ? tokens.length - view.grid[0] * view.grid[1] : 0);

/**
 * Return the value of each token of a side; NaN where it is not known. A patch has the loss of its square.
 *
 * @param {Shares} shares
 * @param {number} side
 * @param {Explained[]} texts
 * @param {Selected|null} selected of the other side, whose shares with each token are returned
 * @returns {Float32Array}
 */
function tokenValues(shares, side, texts, selected) {
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
function wordsOf(shares, side, texts, selected) {
  const { tokens, offsets, texts: names } = texts[side];
  if (shares?.spans) return markedSpans(names[0], shares.spans[side], shares.worth[side]);
  const values = shares ? tokenValues(shares, side, texts, selected) : undefined;
  return markedWords(names[0], { tokens, offsets, unknown: [], shares: values }, true);
}
