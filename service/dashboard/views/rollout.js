/** View of attention rollout: the flow from each token through all layers. */

import { html, nothing } from '../core/html.js';
import { mapScene } from '../elements/map-view.js';
import { hideSinks, measureSwitch, partSwitch, scaleSwitch, weakestLink } from '../ui/controls.js';
import { mapDataOf, mapJson, mapOf } from '../ui/map-panel.js';

/**
 * @typedef {{measure: import('../core/maps.js').Measure}} Asked
 * @typedef {{reading: import('../api/reading.js').Reading, weights: Float32Array}} Reply
 * @typedef {import('../ui/view-slot.js').Shown<Asked, Reply>} Shown
 */

/** @type {Object<string, string>} */
export const NAMES = { weights: 'Rollout', norms: 'Norm rollout' };
/** @type {Object<string, string>} */
export const SAYS = {
  weights:
    'How much of each token reaches each other one through all layers: a layer’s mean over its heads plus the identity, rows rescaled, multiplied from the first layer to the last (Abnar & Zuidema 2020). It agrees with what the model loses without each token no better than chance (correlation 0.09 over 200 pairs of texts): see Why alike?, Remove each word.',
  norms:
    'How much of each token reaches each other one through all layers: the share of each token in the lengths of what all heads of a layer add together, plus the identity, halved, multiplied from the first layer to the last (N-FixedRes of GlobEnc, Modarressi et al. 2022). It agrees with what the model loses without each token better than the rollout of weights (correlation 0.35 against 0.09 over 200 pairs of texts).',
};

/**
 * Return the map's data; rows of both rollouts sum to 1.
 *
 * @param {import('../core/state.js').State} state
 * @param {Shown} shown
 */
const dataOfRollout = (state, { asked, reply }) => mapDataOf(state, reply, NAMES[asked.measure], 'weights');

/** @type {import('../ui/view-slot.js').View<Asked, Reply>} */
export const rolloutView = {
  title: 'Rollout',
  asks: ({ measure }) => ({ measure }),
  answer: async ({ reading, asked, signal }) => ({
    reading,
    weights: await reading.rollout(asked.measure, signal),
  }),

  draw(store, shown) {
    return html`<h2 id="view-title" tabindex="-1">Rollout</h2>
      <p class="says">${SAYS[shown?.asked.measure ?? store.state.measure]}</p>
      <div class="controls">${measureSwitch(store)}${shown ? html`${partSwitch(store, shown.reply.reading.texts.length === 2)}${weakestLink(store)}${scaleSwitch(store)}${hideSinks(store)}` : nothing}</div>
      ${shown ? mapOf(store, dataOfRollout(store.state, shown)) : nothing}`;
  },

  says: ({ asked }) => `${NAMES[asked.measure]} shown.`,

  file({ state }, shown) {
    const data = dataOfRollout(state, shown);
    return { name: NAMES[shown.asked.measure].toLowerCase(), scene: mapScene(data), json: mapJson(data) };
  },
};
