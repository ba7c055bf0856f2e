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
