/**
 * View of an encoder–decoder's cross-attention: a target over the text, with the probability of each token.
 */

import { decoderOf } from '../api/service-info.js';
import { bdi, html, nothing, share } from '../core/html.js';
import { project } from '../core/matrix.js';
import { memo } from '../core/memo.js';
import { tokenUnits, unitsOf } from '../core/words.js';
import { mapScene } from '../elements/map-view.js';
import { choice, measureSwitch, scaleSwitch, weakestLink } from '../ui/controls.js';
import { dataOf, mapJson, mapOf } from '../ui/map-panel.js';
import { textField } from '../ui/text-field.js';

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {{target: string, measure: import('../core/maps.js').Measure, layer: number, head: number|null}} Asked
 * @typedef {import('../ui/view-slot.js').Shown<Asked, Reply>} Shown
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {{reading: Reading, tokens: string[], offsets: number[][], weights: Float32Array,
 *   logprobs: Float32Array}} Reply `weights` `[T, S]`
 */

const MEAN = 'mean';

/** @type {import('../ui/view-slot.js').View<Asked, Reply>} */
export const targetView = {
  title: 'Cross-attention',
  asks({ target, cross, measure }, _, store) {
    const decoder = decoderOf(store.info);
    return decoder && target !== '' ? { target, measure, ...placeOf(cross, decoder) } : null;
  },
  async answer({ reading, asked, signal }) {
    return { reading, ...(await reading.target(asked.target, asked, signal, asked.measure)) };
  },

  draw(store, shown) {
    const decoder = decoderOf(store.info);
    const options = decoder ? optionsOf(decoder) : [];
    const { cross, target } = store.state;
    const known = options.some(({ value }) => value === cross) ? cross : MEAN;
    return html`<h2 id="view-title" tabindex="-1">Cross-attention</h2>
      ${textField(store, {
        id: 'text-t',
        label: 'Translation (or output) to examine',
        value: target,
        patch: (text) => ({ target: text, held: [], zoom: [1, 0, 0] }),
      })}
      <div class="controls">${choice('Head', options, known, (value) => store.go({ cross: value }))}${measureSwitch(store)}${weakestLink(store, store.state.measure)}${scaleSwitch(store)}</div>
      <p class="says">${hint(store)}</p>
      ${shown ? html`${mapOf(store, mapData(store, shown), 'held')}${chances(shown)}` : nothing}`;
  },

  says: () => 'Cross-attention shown.',

  file(store, shown) {
    const data = mapData(store, shown);
    return {
      name: `cross-attention ${data.options.name}`,
      scene: mapScene(data),
      json: {
        target: shown.asked.target,
        logprobs: Array.from(shown.reply.logprobs),
        ...mapJson(data),
      },
    };
  },
};

/** @param {Store} store */
function hint(store) {
  const decoder = decoderOf(store.info);
  if (decoder === undefined) return '';
  if (decoder === null) return 'This model has no decoder, and so no cross-attention.';
  return store.state.target === ''
    ? 'Each row is a token of the target and shows where in the text the decoder looks to write it.'
    : 'Which token of the text the decoder looks at to write each token of the target. In a trained translator the last layer aligns words; earlier layers need not.';
}

/** @param {string[]} tokens @param {number[][]} offsets @param {string} target */
const targetText = (tokens, offsets, target) => ({
  tokens,
  offsets,
  segments: tokens.map(() => 0),
  texts: [target],
});

const named = memo(
  /** @param {Reply} reply @param {string} target @param {boolean} words @param {boolean} bare @param {import('../core/maps.js').Measure} measure */
  ({ reading, tokens, offsets, weights }, target, words, bare, measure) => {
    const rows = unitsOf(targetText(tokens, offsets, target), { words, bare });
    const columns = unitsOf(reading, { words, bare });
    return { rows, columns, weights: project(weights, reading.size, rows, columns), measure };
  },
);

/** @param {Store} store @param {Shown} shown */
function mapData({ state }, { asked, reply }) {
  const place =
    asked.head === null ? `Mean of layer ${asked.layer}` : `Layer ${asked.layer} head ${asked.head}`;
  return dataOf(
    state,
    named(reply, asked.target, state.words, state.bare, asked.measure),
    `${place}${asked.measure === 'norms' ? ' norms' : ''}`,
    state.held,
  );
}

/** @param {Shown} shown */
function chances({ asked, reply: { tokens, offsets, logprobs } }) {
  const units = tokenUnits(targetText(tokens, offsets, asked.target));
  const row = (/** @type {string} */ token, /** @type {number} */ chance) => html`<tr><td>${bdi(token)}</td>
    <td class="number"><span class="meter" .style=${share(chance)}></span>${chance.toFixed(4)}</td></tr>`;
  return html`<div class="chances"><table class="links"><caption>How likely each token of the target is</caption>
    <thead><tr><th scope="col">token</th><th scope="col" class="number">probability</th></tr></thead>
    <tbody>${units.map(({ label }, i) => row(label, Math.exp(logprobs[i])))}</tbody></table></div>`;
}

/** @param {{layers: number, heads: number}} decoder */
function optionsOf({ layers, heads }) {
  const found = [{ value: MEAN, label: `Mean of layer ${layers - 1}` }];
  for (let layer = 0; layer < layers; layer += 1)
    for (let head = 0; head < heads; head += 1)
      found.push({ value: `${layer}.${head}`, label: `Layer ${layer} · head ${head}` });
  return found;
}

/** @param {string} cross @param {{layers: number, heads: number}} decoder all heads of the last layer when head is null */
function placeOf(cross, { layers, heads }) {
  const [layer, head] = cross.split('.').map(Number);
  return cross === MEAN || layer >= layers || head >= heads
    ? { layer: layers - 1, head: null }
    : { layer, head };
}
