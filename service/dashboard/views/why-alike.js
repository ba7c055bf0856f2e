/** View of the similarity of two texts, with the share of each token and pair of tokens. */

import { OtherTextError } from '../api/errors.js';
import { explanation } from '../api/explanation.js';
import { bdi, html, nothing, share } from '../core/html.js';
import { fixed } from '../core/numbers.js';
import { unitsOf } from '../core/words.js';
import { theme } from '../draw/colours.js';
import { shareMap } from '../draw/share-map.js';
import { figuresScene } from '../elements/three-maps.js';
import { headPad } from '../ui/head-pad.js';
import { otherTextProblem, worded } from '../ui/problems.js';
import { textField } from '../ui/text-field.js';

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {import('../core/state.js').State['why']} Method
 * @typedef {{other: string}} Asked
 * @typedef {import('../api/explanation.js').Explanation} Reply
 * @typedef {import('../ui/view-slot.js').Shown<Asked, Reply>} Shown
 * @typedef {import('../api/explanation.js').Explanation} Explanation
 */

/** @type {Record<Method, {name: string, says: string}>} */
const METHODS = {
  pairs: {
    name: 'Contextual shares',
    says: 'The share of each pair of last vectors in the cosine. It says where the similarity lies in the vectors that are compared, not where it came from: the vector at a word has already mixed in its neighbours.',
  },
  occlusion: {
    name: 'Occlusion',
    says: 'What the cosine loses when a token is neither attended to nor pooled. It asks the model again, without the token. Two tokens that say the same hide each other, and below 0 the texts are more alike without it.',
  },
  decomposition: {
    name: 'Decomposition',
    says: 'The share of each pair of input tokens, followed through all layers with attention as it is. It does not say what would have been had a token not been there.',
  },
};
const NAMES = /** @type {Method[]} */ (Object.keys(METHODS));
const MATCHES = 12;
const HEADS = 5;

/** @type {import('../ui/view-slot.js').View<Asked, Reply>} */
export const whyView = {
  title: 'Why alike?',
  asks: ({ b, c }) => ({ other: b ?? c }),

  async answer({ reading, asked, signal, showPart }) {
    const texts = [reading.texts[0], asked.other];
    try {
      return await explanation({ reading, texts, cut: asked.cut, signal, showPart });
    } catch (error) {
      throw signal.aborted ? error : new OtherTextError(error);
    }
  },

  draw(store, shown) {
    const { b, c } = store.state;
    const box = {
      id: 'text-c',
      label: 'Other text',
      value: c,
      patch: (/** @type {string} */ text) => ({ c: text }),
    };
    return html`<h2 id="view-title" tabindex="-1">Why alike?</h2>
      ${b === null ? textField(store, box) : nothing}
      ${otherTextProblem(store)}
      ${shown ? (shown.reply.matches ? matched(shown.reply) : explained(store, shown.reply)) : nothing}`;
  },

  says: ({ reply }) => `Similarity ${fixed(reply.similarity, 3)} explained.`,

  file(store, { asked, reply }) {
    const { similarity, texts, shares, matches, layers, heads } = reply;
    const figures = NAMES.flatMap((method) => figure(store, reply, method) ?? []);
    const columns = texts[1].tokens.length;
    const plain = Object.entries(shares).map(([method, { pairs, worth, error, agreement }]) => [
      method,
      { worth: worth.map((one) => [...one]), pairs: pairs && rowsOf(pairs, columns), error, agreement },
    ]);
    const otherTokens = texts[1].tokens;
    return {
      name: 'why alike',
      scene: figuresScene(figures),
      json: {
        other: asked.other,
        otherTokens,
        similarity,
        layers,
        heads,
        matches,
        ...Object.fromEntries(plain),
      },
    };
  },
};

/**
 * Return the chosen method if its shares have come, else the first method that has.
 *
 * @param {Store} store
 * @param {Explanation} reply
 */
const chosen = ({ state }, { shares }) =>
  state.why in shares ? state.why : (NAMES.find((name) => name in shares) ?? state.why);

/** @param {Store} store @param {Explanation} reply @param {Method} method */
const figure = ({ state }, reply, method) =>
  shareMap(reply, method, METHODS[method].name, state.words, state.bare, theme());

/** @param {Store} store @param {Explanation} reply */
function explained(store, reply) {
  const method = chosen(store, reply);
  const figures = figure(store, reply, method);
  return html`<p class="why-similarity"><span class="figure">${fixed(reply.similarity, 4)}</span> cosine of the two
      vectors${store.state.off.length ? ', with every head switched on' : ''}</p>
    <div class="segments" role="group" aria-label="Method">${NAMES.map(
      (one) => html`<button type="button" aria-pressed=${String(one === method)}
        ?disabled=${!(one in reply.shares)} @click=${() => store.go({ why: one })}>${METHODS[one].name}</button>`,
    )}</div>
    <p class="says">${METHODS[method].says}</p>
    ${method in reply.shares ? reply.texts.map((_, side) => marked(store, reply, method, side)) : nothing}
    <div class="why-body">${figures ? html`<three-maps class="why-map" .data=${figures}></three-maps>` : nothing}
      <div class="comparison">
        <section aria-label="How far to believe it"><h3>How far to believe it</h3>${trust(reply)}</section>
        ${reply.layers ? html`<section aria-label="Layer by layer"><h3>Layer by layer</h3>${byLayer(reply.layers)}</section>` : nothing}
        ${reply.layers ? html`<section aria-label="Head by head"><h3>Head by head</h3>${byHead(store, reply)}</section>` : nothing}
      </div></div>`;
}

/**
 * Tokens of one text with their shares.
 *
 * @param {Store} store
 * @param {Explanation} reply
 * @param {Method} method
 * @param {number} side
 */
function marked({ state }, reply, method, side) {
  const { worth } = reply.shares[method];
  // losses of several tokens do not add up to that of their word
  const words = state.words && method !== 'occlusion';
  const units = unitsOf(reply.texts[side], { words, bare: state.bare });
  const values = units.map(({ tokens }) => tokens.reduce((sum, token) => sum + worth[side][token], 0));
  const known = [...worth.flatMap((one) => [...one]), ...values].filter((value) => !Number.isNaN(value));
  const most = known.reduce((m, v) => Math.max(m, Math.abs(v)), 1e-9);
  return html`<ul class="marked" aria-label=${side ? 'Other text, token by token' : 'Text, token by token'}>${units.map(
    (
      unit,
      i,
    ) => html`<li class=${values[i] < 0 ? 'less' : ''} .style=${share(Math.abs(values[i] || 0) / most)}>${bdi(unit.label)}
      <span class="number">${Number.isNaN(values[i]) ? '–' : fixed(values[i], 3)}</span></li>`,
  )}</ul>`;
}

/** @param {Explanation} reply */
function trust({ shares, refused, similarity }) {
  const row = (/** @type {Method} */ method) => {
    const found = shares[method];
    const head = html`<th scope="row">${METHODS[method].name}</th>`;
    if (!found)
      return html`<tr>${head}<td colspan="3">${method in refused ? worded(refused[method]) : '…'}</td></tr>`;
    const sum = found.worth[0].reduce((total, value) => total + value, 0);
    const agreement = found.agreement === null ? '–' : fixed(found.agreement, 2);
    return html`<tr>${head}<td class="number">${found.pairs ? fixed(sum, 4) : '–'}</td>
      <td class="number">${found.error === null ? '–' : found.error.toExponential(0)}</td>
      <td class="number">${found.pairs ? agreement : 'itself'}</td></tr>`;
  };
  return html`<table><thead><tr><th scope="col">Method</th><th scope="col" class="number">sums to</th>
      <th scope="col" class="number">error</th><th scope="col" class="number">agrees with occlusion</th></tr></thead>
    <tbody>${NAMES.map(row)}</tbody></table>
    <p class="says">Shares should sum to ${fixed(similarity, 4)}. Agreement is Spearman’s correlation with what the model
      loses without each token; near 0, shares do not tell which tokens it needs, however well they sum.${shares.occlusion?.worth.some((side) => side.some(Number.isNaN)) ? ' Tokens with – were not left out: the deadline came first.' : ''}</p>`;
}

/** @param {number[]} layers */
function byLayer(layers) {
  const row = (/** @type {number} */ cosine, /** @type {number} */ layer) => html`<tr>
    <th scope="row">${layer === 0 ? 'embeddings' : `layer ${layer - 1}`}</th>
    <td class="number"><span class="meter" .style=${share(cosine)}></span>${fixed(cosine, 4)}</td></tr>`;
  return html`<table><thead><tr><th scope="col">Vectors after</th><th scope="col" class="number">cosine</th></tr></thead>
    <tbody>${layers.map(row)}</tbody></table>`;
}

/** Shares of heads. @param {Store} store @param {Explanation} reply */
function byHead(store, { heads, refused }) {
  if (!heads) return html`<p class="says">${'heads' in refused ? worded(refused.heads) : '…'}</p>`;
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
    label: 'What each head is worth',
    layers: heads.length,
    heads: heads[0].length,
    pick: show,
    cell: (layer, head) => ({
      value: Math.abs(worth(layer, head)) / most,
      pressed: false,
      says: heads[layer][head] === null ? 'not computed in time' : `worth ${fixed(worth(layer, head), 4)}`,
    }),
  });
  return html`${pad}<table><caption>What the cosine loses with a head switched off in both texts</caption>
    <thead><tr><th scope="col">Head</th><th scope="col" class="number">loss</th></tr></thead>
    <tbody>${ranked.slice(0, HEADS).map(row)}</tbody></table>
    <p class="says">Below 0 the texts are more alike without the head. Heads that do the same stand in for one another.</p>`;
}

/** Matches of a model whose similarity is a sum over matching tokens. @param {Explanation} reply */
function matched({ similarity, matches, texts: [query, document] }) {
  const most = [...(matches ?? [])].sort((one, other) => other.score - one.score).slice(0, MATCHES);
  return html`<p class="why-similarity"><span class="figure">${fixed(similarity, 4)}</span> similarity, of what matches</p>
    <table class="links"><caption>Tokens that match, and what each match is worth</caption>
      <thead><tr><th scope="col">text</th><th scope="col">other text</th><th scope="col" class="number">score</th></tr></thead>
      <tbody>${most.map(
        ({
          query: i,
          document: j,
          score,
        }) => html`<tr><td>${bdi(query.tokens[i])}</td><td>${bdi(document.tokens[j])}</td>
        <td class="number">${fixed(score, 4)}</td></tr>`,
      )}</tbody></table>`;
}

/** @param {Float32Array} values @param {number} width */
const rowsOf = (values, width) =>
  Array.from({ length: values.length / width }, (_, row) => [
    ...values.subarray(row * width, (row + 1) * width),
  ]);
