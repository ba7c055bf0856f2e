/** Attention rollout: what reaches each token through all layers. */

import { partSwitch, scaleSwitch, weakestLink } from './controls.js';
import { html, nothing } from './html.js';
import { mapDataOf, mapJson, mapOf } from './map-panel.js';
import { mapScene } from './mapview.js';

/** @type {import('./store.js').View} */
export const rolloutView = {
  title: 'Rollout',
  asks: () => ({}),
  answer: async ({ reading, signal }) => ({ reading, weights: await reading.rollout(signal) }),

  draw(store, shown) {
    return html`<h2 id="view-title" tabindex="-1">Rollout</h2>
      <p class="says">How much of each token reaches each other one through all layers: a layer’s mean over its heads
        plus the identity, rows rescaled, multiplied from the first layer to the last (Abnar & Zuidema 2020).</p>
      ${
        shown
          ? html`<div class="controls">${partSwitch(store, shown.reply.reading.texts.length === 2)}${weakestLink(store)}${scaleSwitch(store)}</div>
          ${mapOf(store, mapDataOf(store.state, shown.reply, 'Rollout'))}`
          : nothing
      }`;
  },

  says: () => 'Rollout shown.',

  file({ state }, { reply }) {
    const data = mapDataOf(state, reply, 'Rollout');
    return { name: 'rollout', scene: mapScene(data), json: mapJson(data) };
  },
};
