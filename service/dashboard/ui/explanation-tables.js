/** Tables of an explanation: its layers, its heads, its matches; and how long its parts take. */

import { isRefusal } from '../api/explanation.js';
import { errorOf, isPending, Stopped } from '../core/answers.js';
import { bdi, html, nothing, share } from '../core/html.js';
import { largest } from '../core/matrix.js';
import { fixed } from '../core/numbers.js';
import '../elements/wait-bar.js';
import { headPad, strongest } from './head-pad.js';
import { worded } from './problems.js';

const MATCHES = 12;
const HEADS = 5;
/** Number of words that are left out of each long text. */
export const TOP_WORDS = 20;

/**
 * @typedef {import('./store.js').Store} Store
 * @typedef {import('./view-slot.js').Parts} Parts
 * @typedef {import('../api/explanation.js').Explanation} Explanation
 */

/** Seconds a unit of work has taken on this page, by part. @type {Map<string, number>} */
const paces = new Map();

/** Return the units of work of each part, in proportion to the tokens that the model computes. @type {Object<string, (e: Explanation) => number>} */
const UNITS = {
  occlusion: ({ texts: [a, b] }) => a.tokens.length ** 2 + b.tokens.length ** 2,
  words: ({ texts: [a, b] }) => a.tokens.length ** 2 + b.tokens.length ** 2,
  // some fifteen tokens a sentence
  sentences: ({ texts: [a, b] }) => (a.tokens.length ** 2 + b.tokens.length ** 2) / 15,
  strongest: ({ texts: [a, b] }) => TOP_WORDS * (a.tokens.length + b.tokens.length),
  decomposition: ({ texts: [a, b] }) => a.tokens.length ** 2 + b.tokens.length ** 2,
  layers: ({ reading, texts: [a, b] }) => (reading.layers + 1) * (a.tokens.length + b.tokens.length),
  heads: ({ reading, texts: [a, b] }) => reading.layers * reading.heads * (a.tokens.length + b.tokens.length),
};

/**
 * Return the seconds that a part is expected to take: by its own pace, else by another part's pace a token.
 *
 * @param {Explanation} reply
 * @param {string} part
 * @returns {number|null} null of a decomposition, until one has been measured
 */
function expected(reply, part) {
  const others = part === 'decomposition' ? [] : ['occlusion', 'sentences', 'layers'];
  const known = [part, ...others].find((name) => paces.has(name));
  return known ? Number(paces.get(known)) * UNITS[part](reply) : null;
}

/**
 * Measure the pace of a part, by which the next wait for it is forecast.
 *
 * @template T
 * @param {Explanation} reply
 * @param {string} part
 * @param {Promise<T>} work
 */
export async function paced(reply, part, work) {
  const began = performance.now();
  const found = await work;
  paces.set(part, (performance.now() - began) / 1000 / UNITS[part](reply));
  return found;
}

/**
 * Return what is to be said of a part that has not come: that it waits, how long, or why it failed.
 *
 * @param {Explanation} reply
 * @param {Parts} parts
 * @param {string} part
 */
export function waitOf(reply, parts, part) {
  const slot = parts[part];
  if (errorOf(slot?.answer ?? null)) return partProblem(slot);
  if (!slot || !isPending(slot.answer)) return html`<span class="says">Waits for its turn.</span>`;
  const wait = { label: `Progress of ${part}`, began: slot.began, seconds: expected(reply, part) };
  return html`<span class="wait"><wait-bar .data=${wait}></wait-bar>
    <button type="button" class="quiet" @click=${() => slot.halt()}>Stop</button></span>`;
}

/** Error of a part, or a note that it was stopped. @param {Parts[string]} slot whose answer is an error */
export function partProblem(slot) {
  const error = /** @type {Error} */ (errorOf(slot.answer));
  const again = () => slot.retry({ stopped: true });
  return html`<span class="part-problem">${error instanceof Stopped ? 'Stopped.' : worded(error.message)}</span>
    ${isRefusal(error) ? nothing : html`<button type="button" class="quiet" @click=${again}>Try again</button>`}`;
}

/** @param {number[]} layers */
export function byLayer(layers) {
  const row = (
    /** @type {number} */ cosine,
    /** @type {number} */ layer,
  ) => html`<tr class=${cosine < 0 ? 'less' : ''}>
    <th scope="row">${layer === 0 ? 'embeddings' : `layer ${layer - 1}`}</th>
    <td class="number"><span class="meter" .style=${share(Math.abs(cosine))}></span>${fixed(cosine, 4)}</td></tr>`;
  const rows = layers.map((cosine, layer) => row(cosine, layer));
  return html`<table><thead><tr><th scope="col">Vectors after</th><th scope="col" class="number">cosine</th></tr></thead>
    <tbody>${rows}</tbody></table>`;
}

/** Losses without each head. @param {Store} store @param {(number|null)[][]} heads */
export function byHead(store, heads) {
  const computed = heads.flat();
  const losses = computed.map((loss) => loss ?? 0);
  const most = strongest(losses);
  const ranked = largest(losses.map(Math.abs), HEADS);
  const show = (/** @type {number} */ layer, /** @type {number} */ head) =>
    store.go({ view: 'head', layer, head }, { focus: '#view-title' });
  const row = (/** @type {number} */ place) => {
    const [layer, head, loss] = [Math.floor(place / heads[0].length), place % heads[0].length, losses[place]];
    return html`<tr class=${loss < 0 ? 'less' : ''}><th scope="row"><button type="button" class="quiet" @click=${() => show(layer, head)}>Layer ${layer} · Head ${head}</button></th>
      <td class="number"><span class="meter" .style=${share(Math.abs(loss) / most)}></span>${fixed(loss, 4)}</td></tr>`;
  };
  const pad = headPad({
    label: 'Loss without each head',
    of: { layers: heads.length, heads: heads[0].length },
    values: losses,
    pressed: [],
    pick: show,
    says: (place) => (computed[place] === null ? 'not computed in time' : `loss ${fixed(losses[place], 4)}`),
  });
  return html`${pad}<table><caption>What the similarity loses with a head switched off in both texts</caption>
    <thead><tr><th scope="col">Head</th><th scope="col" class="number">loss</th></tr></thead>
    <tbody>${ranked.map(row)}</tbody></table>
    <p class="says">Brown, and below 0: the texts are more alike without the head. Heads that do the same stand in for one another.</p>`;
}

/**
 * Return the strongest matches, and the number and the sum of the others; `rest` is null where all are among them.
 *
 * @template {{score: number}} M
 * @param {M[]} matches
 */
export function strongestMatches(matches) {
  const all = [...matches].sort((one, other) => other.score - one.score);
  const others = all.slice(MATCHES);
  const score = others.reduce((sum, match) => sum + match.score, 0);
  const rest = others.length ? { label: `${others.length} more`, score } : null;
  return { strongest: all.slice(0, MATCHES), rest };
}

/**
 * Table of the matches that a similarity is the sum of; its last row is that of all that are not listed.
 *
 * @template {{score: number}} M
 * @param {string} kind class of the table
 * @param {string} caption
 * @param {M[]} matches
 * @param {Object<string, (match: M) => string>} columns what is matched, by title
 */
export function matchTable(kind, caption, matches, columns) {
  const { strongest: listed, rest } = strongestMatches(matches);
  const titles = Object.keys(columns);
  const row = (/** @type {M} */ match) =>
    html`<tr>${Object.values(columns).map((cell) => html`<td>${bdi(cell(match))}</td>`)}<td class="number">${fixed(match.score, 4)}</td></tr>`;
  return html`<table class=${kind}><caption>${caption}</caption>
    <thead><tr>${titles.map((title) => html`<th scope="col">${title}</th>`)}<th scope="col" class="number">score</th></tr></thead>
    <tbody>${listed.map(row)}</tbody>${
      rest
        ? html`<tfoot><tr><td colspan=${titles.length}>${rest.label}</td><td class="number">${fixed(rest.score, 4)}</td></tr></tfoot>`
        : nothing
    }</table>`;
}
