/** View of the query of one token and the key of another: their products by feature, and the score. */

import { comparedWith, scoresOf, strongestFirst } from '../api/head-scores.js';
import { bdi, html, nothing, share } from '../core/html.js';
import { placeOf } from '../core/maps.js';
import { largest } from '../core/matrix.js';
import { memo } from '../core/memo.js';
import { fixed } from '../core/numbers.js';
import { unitsOf } from '../core/words.js';
import { theme } from '../draw/colours.js';
import { featuresScene } from '../draw/feature-bars.js';
import '../elements/feature-bars.js';
import { segments } from '../ui/controls.js';
import { headPadOf } from '../ui/head-pad.js';

const FEATURES = 8;
const KEYS = 8;
const HIGH = { vector: 64, products: 128 };

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {{layer: number, head: number, from: number, to: number}} Asked
 * @typedef {import('../ui/view-slot.js').Shown<Asked, Reply>} Shown
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {import('../api/head-scores.js').HeadScores} HeadScores
 * @typedef {import('../api/head-scores.js').Compared} Compared
 * @typedef {{reading: Reading, scores: HeadScores}} Reply
 */

/** @type {import('../ui/view-slot.js').View<Asked, Reply>} */
export const comparedView = {
  title: 'Query and key',
  asks(state, reading, store) {
    const { from, to } = store.withFirstLink(reading);
    const isLink = from !== null && to !== null && Math.max(from, to) < reading.size;
    return isLink ? { ...reading.place(state), from, to } : null;
  },

  answer: async ({ reading, asked, signal }) => ({
    reading,
    scores: await scoresOf(reading, asked, signal),
  }),

  draw(store, shown) {
    const reading = shown?.reply.reading ?? store.reading?.reply;
    const { layer, head } = shown?.asked ?? reading?.place(store.state) ?? store.state;
    return html`<div class="head-top">
        <div class="head-facts"><h2 id="view-title" tabindex="-1">Query and key in layer ${layer} · head ${head}</h2>
          ${shown ? facts(store, shown) : nothing}
          ${shown || !reading || store.busy || store.problem ? nothing : html`<p class="says">Click two tokens of the text: the one that looks, then the one it looks at.</p>`}</div>
        ${reading ? headPadOf(store, reading) : nothing}
      </div>
      ${shown ? byFeature(store, shown) : nothing}`;
  },

  says(shown) {
    const { layer, head } = shown.asked;
    const [from, to] = namesOf(shown);
    return `Query of ${from} and key of ${to} in layer ${layer} head ${head} shown.`;
  },

  file({ state }, shown) {
    const { layer, head, from, to } = shown.asked;
    const { reading, scores } = shown.reply;
    const { query, key, products, sum, positions, score, weight } = comparedWith(scores, to);
    return {
      name: `query and key layer ${layer} head ${head}`,
      scene: featuresScene(featuresOf(shown, state.strongest)),
      json: {
        layer,
        head,
        from: { token: from, text: reading.tokens[from] },
        to: { token: to, text: reading.tokens[to] },
        scale: scores.scale,
        query,
        key,
        products,
        sum,
        positions,
        score,
        weight,
        scores: scores.scores,
        weights: scores.weights,
      },
    };
  },
};

/** @param {Reading} reading */
const tokensOf = (reading) => unitsOf(reading, { words: false, bare: false });

/** Return the names of the two tokens. @param {Shown} shown */
function namesOf({ asked, reply }) {
  const units = tokensOf(reply.reading);
  return [units[asked.from].name, units[asked.to].name];
}

/** The score, and its parts. @param {Store} store @param {Shown} shown */
function facts({ state }, shown) {
  const { scores, reading } = shown.reply;
  const { sum, positions, score, weight, rank } = comparedWith(scores, shown.asked.to);
  const [from, to] = namesOf(shown);
  const fact = (/** @type {string} */ name, /** @type {string} */ value) =>
    html`<div><dt>${name}</dt><dd>${value}</dd></div>`;
  const says =
    scores.scale === null
      ? 'This model’s scores are no sums of products of features.'
      : `The query times the key, feature by feature, times ${scores.scale.toPrecision(4)}: the products${positions ? ', and what relative positions add,' : ''} make up the score.`;
  return html`<p class="pair-named">${bdi(from)} <span aria-hidden="true">→</span> ${bdi(to)}</p>
    <p class="says">${says} The weights are made of the scores of all keys.</p>
    ${isMerged(state, shown) ? html`<p class="says">Every piece of a word has a query and a key of its own: these are of the pieces named here.</p>` : nothing}
    <dl class="statistics">
      ${sum === null ? nothing : fact('Sum of products', fixed(sum, 3))}
      ${positions ? fact('Relative positions add', fixed(positions, 3)) : nothing}
      ${fact('Score', fixed(score, 3))}${fact('Rank of the score', `${rank} of ${reading.size}`)}${fact('Weight', weight.toFixed(4))}
    </dl>`;
}

/**
 * Return whether a token is part of a merged word.
 *
 * @param {import('../core/state.js').State} state
 * @param {Shown} shown
 */
function isMerged({ words }, { asked, reply }) {
  const units = unitsOf(reply.reading, { words, bare: false });
  return [asked.from, asked.to].some((token) => units[placeOf(units, token)].tokens.length > 1);
}

/**
 * Bars of features, and tables of the strongest features and keys.
 *
 * @param {Store} store
 * @param {Shown} shown
 */
function byFeature(store, shown) {
  const { scores } = shown.reply;
  const compared = comparedWith(scores, shown.asked.to);
  return html`${compared.products ? orderSwitch(store) : nothing}
    <feature-bars .data=${featuresOf(shown, store.state.strongest)}></feature-bars>
    <div class="comparison">
      ${compared.products ? html`<section aria-label="Strongest features">${featureTable(compared, compared.products)}</section>` : nothing}
      <section aria-label="Scores of keys">${keyTable(store, shown)}</section>
    </div>`;
}

/** @param {Store} store */
function orderSwitch(store) {
  const names = { number: 'By number', strongest: 'Strongest first' };
  const choose = (/** @type {keyof typeof names} */ order) =>
    store.go({ strongest: order === 'strongest' }, { replace: true });
  return html`<div class="controls">${segments('Order of features', names, store.state.strongest ? 'strongest' : 'number', choose)}</div>`;
}

/** @param {Shown} shown @param {boolean} strongest */
const featuresOf = (shown, strongest) => {
  const [from, to] = namesOf(shown);
  return made(comparedWith(shown.reply.scores, shown.asked.to), from, to, strongest, theme());
};

const made = memo(
  /** @param {Compared} compared @param {string} from @param {string} to @param {boolean} strongest @param {string} _theme */
  (compared, from, to, strongest, _theme) => ({
    label: `Query of ${from} and key of ${to}, feature by feature`,
    rows: [
      { name: 'query', title: `Query of “${from}”`, values: compared.query, high: HIGH.vector },
      { name: 'key', title: `Key of “${to}”`, values: compared.key, high: HIGH.vector },
      ...productRow(compared),
    ],
    order: strongest && compared.products ? strongestFirst(compared.products) : [...compared.query.keys()],
  }),
);

/** Return the row of products, if scores are sums of products. @param {Compared} compared */
function productRow({ products, sum, positions, score }) {
  if (!products || sum === null) return [];
  const more = positions ? ` of the score ${fixed(score, 3)}` : '';
  const title = `Products, which add up to ${fixed(sum, 3)}${more}`;
  return [{ name: 'product', title, values: products, high: HIGH.products }];
}

/** @param {Compared} compared @param {number[]} products */
function featureTable({ query, key }, products) {
  const strongest = strongestFirst(products).slice(0, FEATURES);
  const most = Math.abs(products[strongest[0]]) || 1;
  const row = (/** @type {number} */ i) => html`<tr class=${products[i] < 0 ? 'less' : ''}><td>${i}</td>
    ${[query[i], key[i]].map((value) => html`<td class="number">${fixed(value, 3)}</td>`)}
    <td class="number"><span class="meter" .style=${share(Math.abs(products[i]) / most)}></span>${fixed(products[i], 3)}</td></tr>`;
  return html`<table><caption>Features with the largest products</caption>
    <thead><tr><th scope="col">feature</th>${['query', 'key', 'product'].map((name) => html`<th scope="col" class="number">${name}</th>`)}</tr></thead>
    <tbody>${strongest.map(row)}</tbody></table>`;
}

/**
 * Table of the keys with the largest scores, and the chosen key.
 *
 * @param {Store} store
 * @param {Shown} shown
 */
function keyTable(store, { asked, reply }) {
  const { reading, scores } = reply;
  const units = tokensOf(reading);
  const best = largest(scores.scores, KEYS);
  const listed = best.includes(asked.to) ? best : [...best, asked.to];
  const go = (/** @type {number} */ to) => store.go({ from: asked.from, to }, { replace: true });
  const row = (
    /** @type {number} */ i,
  ) => html`<tr><td><button type="button" class="chip" aria-pressed=${String(i === asked.to)}
      @click=${() => go(i)}>${bdi(units[i].name)}</button></td>
    <td class="number">${fixed(scores.scores[i], 3)}</td>
    <td class="number"><span class="meter" .style=${share(scores.weights[i])}></span>${scores.weights[i].toFixed(4)}</td></tr>`;
  return html`<table class="keys"><caption>Keys with the largest scores for “${bdi(units[asked.from].name)}”</caption>
    <thead><tr><th scope="col">key</th>${['score', 'weight'].map((name) => html`<th scope="col" class="number">${name}</th>`)}</tr></thead>
    <tbody>${listed.map(row)}</tbody></table>`;
}
