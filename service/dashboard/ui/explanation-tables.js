/** Tables of an explanation: its methods, its layers, its heads, its matches. */

import { isRefusal } from '../api/explanation.js';
import { errorOf, isPending, Stopped } from '../core/answers.js';
import { spearman } from '../core/correlation.js';
import { bdi, html, nothing, share } from '../core/html.js';
import { fixed } from '../core/numbers.js';
import '../elements/wait-bar.js';
import { headPad } from './head-pad.js';
import { worded } from './problems.js';

const MATCHES = 12;
const HEADS = 5;
/** Number of words that are left out of each long text. */
export const TOP_WORDS = 20;

/**
 * @typedef {import('./store.js').Store} Store
 * @typedef {import('./view-slot.js').Parts} Parts
 * @typedef {import('../api/explanation.js').Explanation} Explanation
 * @typedef {import('../api/explanation.js').Shares} Shares
 * @typedef {{name: string, shares: Shares|null, part: string, refusal: string}} Method `part` is the name of its slot
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

/**
 * Table of the methods: how far each can be relied on, and its time.
 *
 * @param {Explanation} reply
 * @param {Parts} parts
 * @param {Method[]} methods
 * @param {Shares|null} reference losses without each token
 */
export function reliability(reply, parts, methods, reference) {
  const row = (/** @type {Method} */ { name, shares, part, refusal }) => {
    const head = html`<th scope="row">${name}</th>`;
    if (!shares)
      return html`<tr>${head}<td colspan="4">${refusal ? worded(refusal) : waitOf(reply, parts, part)}</td></tr>`;
    const sum = shares.worth[0].reduce((total, value) => total + value, 0);
    const agreement = reference && spearman(flat(shares), flat(reference));
    const seconds = part === 'pairs' ? reply.seconds : (parts[part]?.seconds ?? null);
    return html`<tr>${head}<td class="number">${shares.pairs ? fixed(sum, 4) : '–'}</td>
      <td class="number">${shares.error === null ? '–' : shares.error.toExponential(0)}</td>
      <td class="number">${shares === reference ? 'reference' : agreement === null ? '–' : fixed(agreement, 2)}</td>
      <td class="number">${seconds === null ? '–' : `${seconds.toFixed(1)} s`}</td></tr>`;
  };
  const names = ['sums to', 'error', 'agrees with removal', 'time'];
  const isPartial = reference?.worth.some((side) => side.some(Number.isNaN));
  return html`<table><thead><tr><th scope="col">Method</th>${names.map((name) => html`<th scope="col" class="number">${name}</th>`)}</tr></thead>
    <tbody>${methods.map(row)}</tbody></table>
    <p class="says">Shares should sum to ${fixed(reply.similarity, 4)}. Agreement is Spearman’s correlation with the losses
      without each token; near 0, shares do not tell which tokens the model needs, however well they sum.${isPartial ? ' Tokens with – were not removed: the deadline came first.' : ''}</p>`;
}

/** Return the values of both texts. @param {Shares} shares */
const flat = ({ worth }) => worth.flatMap((side) => [...side]);

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
  const worth = (/** @type {number} */ layer, /** @type {number} */ head) => heads[layer][head] ?? 0;
  const most = Math.max(...heads.flat().map((loss) => Math.abs(loss ?? 0)), 1e-9);
  const ranked = heads
    .flatMap((row, layer) => row.map((_, head) => ({ layer, head, loss: worth(layer, head) })))
    .sort((one, other) => Math.abs(other.loss) - Math.abs(one.loss));
  const show = (/** @type {number} */ layer, /** @type {number} */ head) =>
    store.go({ view: 'head', layer, head }, { focus: '#view-title' });
  const row = (/** @type {{layer: number, head: number, loss: number}} */ { layer, head, loss }) => html`<tr
    class=${loss < 0 ? 'less' : ''}><th scope="row"><button type="button" class="quiet" @click=${() => show(layer, head)}>Layer ${layer} · Head ${head}</button></th>
    <td class="number"><span class="meter" .style=${share(Math.abs(loss) / most)}></span>${fixed(loss, 4)}</td></tr>`;
  const pad = headPad({
    label: 'Loss without each head',
    layers: heads.length,
    heads: heads[0].length,
    pick: show,
    cell: (layer, head) => ({
      value: worth(layer, head) / most,
      pressed: false,
      says: heads[layer][head] === null ? 'not computed in time' : `loss ${fixed(worth(layer, head), 4)}`,
    }),
  });
  return html`${pad}<table><caption>What the similarity loses with a head switched off in both texts</caption>
    <thead><tr><th scope="col">Head</th><th scope="col" class="number">loss</th></tr></thead>
    <tbody>${ranked.slice(0, HEADS).map(row)}</tbody></table>
    <p class="says">Brown, and below 0: the texts are more alike without the head. Heads that do the same stand in for one another.</p>`;
}

/** Return the strongest matches. @param {Explanation} reply */
export const strongestMatches = ({ matches }) =>
  [...(matches ?? [])].sort((one, other) => other.score - one.score).slice(0, MATCHES);

/**
 * Matches of a model whose similarity is a sum over matching tokens.
 *
 * @param {Explanation} reply
 * @param {(side: number, token: number) => string} label
 */
export function matched(reply, label) {
  return html`<table class="links"><caption>Tokens that match, and what each match is worth</caption>
      <thead><tr><th scope="col">text</th><th scope="col">other text</th><th scope="col" class="number">score</th></tr></thead>
      <tbody>${strongestMatches(reply).map(
        ({
          query,
          document,
          score,
        }) => html`<tr><td>${bdi(label(0, query))}</td><td>${bdi(label(1, document))}</td>
        <td class="number">${fixed(score, 4)}</td></tr>`,
      )}</tbody>${restOf(reply)}</table>`;
}

/** Row of the matches that are not listed, so that all rows sum to the score. @param {Explanation} reply */
function restOf(reply) {
  const rest = otherMatches(reply);
  return rest
    ? html`<tfoot><tr><td colspan="2">${rest.label}</td><td class="number">${fixed(rest.score, 4)}</td></tr></tfoot>`
    : nothing;
}

/** Return the number and the sum of the matches that are not the strongest; null where all are. @param {Explanation} reply */
export function otherMatches({ matches }) {
  const all = [...(matches ?? [])].sort((one, other) => other.score - one.score);
  const rest = all.slice(MATCHES);
  const score = rest.reduce((sum, match) => sum + match.score, 0);
  return rest.length ? { label: `${rest.length} more`, score } : null;
}
