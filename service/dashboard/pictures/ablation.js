/** View of heads switched off, with the chosen head’s map before and after over the picture. */

import { html } from '../core/html.js';
import { difference, peak } from '../core/matrix.js';
import { memo } from '../core/memo.js';
import { sideBySide } from '../draw/scene.js';
import { ablationWith } from '../views/ablation.js';
import { pictureScene, scaleOf } from './drawing.js';
import { drawnOf, lookControls, patchWeights, pictureMap, rowJson, titleOf } from './maps.js';
import { fromOf } from './tokens.js';

/**
 * @typedef {import('./drawing.js').Layer} Layer
 * @typedef {{name: string, layer: Layer}} Figure
 */

/** Width and height of a figure in a file, in pixels. */
const ROOM = [340, 400];
/** The most of a figure's height on the screen, in pixels. */
const TALL = 360;

/** Return the maps before and after on one scale, and their difference. @returns {Figure[]} */
const figures = memo(
  /** @param {Float32Array} before @param {Float32Array} after @param {number} even @param {boolean} linear */
  (before, after, even, linear) => {
    const common = scaleOf(Math.max(peak(before), peak(after)), even, linear);
    const moved = difference(after, before);
    return [
      { name: 'Before', layer: { ...common, values: before, signed: false } },
      { name: 'After', layer: { ...common, values: after, signed: false } },
      { name: 'Difference, after − before', layer: { ...common, values: moved, signed: true } },
    ];
  },
);

/** @param {import('../core/state.js').State} state @param {import('../views/ablation.js').Reply} reply */
function figuresOf(state, { reading, before, after }) {
  const from = fromOf(state, reading);
  const [first, second] = [before, after].map((map) => patchWeights(reading, map, from));
  return figures(first, second, 1 / reading.size, state.linear);
}

/**
 * @param {() => import('./maps.js').End} endOf returns the end that a click chooses
 */
export const ablationOfPicture = (endOf) =>
  ablationWith({
    draw: (store, reply) => html`<div class="controls">${lookControls(store)}</div>
      <div class="threefold">${figuresOf(store.state, reply).map(
        ({ name, layer }) => html`<figure><figcaption>${name}</figcaption>
          ${pictureMap(store, reply.reading, { layer, label: name, end: endOf(), tall: TALL })}</figure>`,
      )}</div>`,

    file({ state }, reply) {
      const { reading, before, after } = reply;
      const scenes = figuresOf(state, reply).map(({ name, layer }) => ({
        ...pictureScene(drawnOf(state, reading, layer), ROOM),
        title: name,
      }));
      return {
        texts: [titleOf(state, reading)],
        scene: sideBySide(scenes),
        json: { maps: [before, after].map((map) => rowJson(state, reading, map)) },
      };
    },
  });
