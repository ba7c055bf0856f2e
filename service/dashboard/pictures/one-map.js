/** Views of one map over the picture, from the chosen patch: of one head, and of rollout through all layers. */

import { html, nothing } from '../core/html.js';
import { measureSwitch, scaleSwitch } from '../ui/controls.js';
import { headPadOf } from '../ui/head-pad.js';
import { behaviour, facts, NORMS, titled } from '../views/one-head.js';
import { NAMES, rolloutView, SAYS } from '../views/rollout.js';
import { lookControls, pictureBody, rowFile, saysFrom } from './maps.js';

/**
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {{layer: number, head: number, measure: import('../core/maps.js').Measure}} Asked
 * @typedef {import('./maps.js').Reply} Reply
 */

/**
 * @param {() => import('./maps.js').End} endOf returns the end that a click chooses
 * @returns {import('../ui/view-slot.js').View<Asked, Reply>}
 */
export const headOfPicture = (endOf) => ({
  title: 'One head',
  asks: (state, reading) => ({ ...reading.place(state), measure: state.measure }),
  answer: async ({ reading, asked: { layer, head, measure }, signal }) => ({
    reading,
    weights: await reading.map(layer, head, signal, measure),
  }),

  draw(store, shown) {
    const reading = shown?.reply.reading ?? store.reading?.reply;
    const { layer, head } = shown?.asked ?? reading?.place(store.state) ?? store.state;
    const how = { label: `Layer ${layer} head ${head}`, end: endOf() };
    const pad = reading ? headPadOf(store, reading) : nothing;
    return html`<div class="head-title"><h2 id="view-title" tabindex="-1">Layer ${layer} · Head ${head}</h2>
        ${shown ? behaviour(store, shown.reply.reading, layer, head) : nothing}</div>
      <div class="controls">${measureSwitch(store)}${lookControls(store)}${scaleSwitch(store)}</div>
      ${shown?.asked.measure === 'norms' ? html`<p class="says">${NORMS}</p>` : nothing}
      ${shown ? pictureBody(store, shown.reply, how, pad) : pad}
      ${shown ? facts(shown.reply.reading, layer, head) : nothing}`;
  },

  says: ({ asked, reply }, _, state) => `${titled(asked)} shown. ${saysFrom(state, reply.reading)}`,

  file({ state }, { asked, reply }) {
    const { layer, head, measure } = asked;
    const { reading } = reply;
    const statistics = reading.statisticsOf(layer, head);
    return {
      name: titled(asked).toLowerCase(),
      ...rowFile(state, reply, { layer, head, measure, label: reading.labelOf(layer, head), statistics }),
    };
  },
});

/**
 * @param {() => import('./maps.js').End} endOf returns the end that a click chooses
 * @returns {typeof rolloutView}
 */
export const rolloutOfPicture = (endOf) => ({
  ...rolloutView,

  draw(store, shown) {
    const measure = shown?.asked.measure ?? store.state.measure;
    return html`<h2 id="view-title" tabindex="-1">Rollout</h2>
      <p class="says">${SAYS[measure]}</p>
      <div class="controls">${measureSwitch(store)}${lookControls(store)}${scaleSwitch(store)}</div>
      ${shown ? pictureBody(store, shown.reply, { label: NAMES[measure], end: endOf() }, nothing) : nothing}`;
  },

  says: (shown, parts, state) =>
    `${rolloutView.says(shown, parts, state)} ${saysFrom(state, shown.reply.reading)}`,

  file: ({ state }, { asked, reply }) => ({
    name: NAMES[asked.measure].toLowerCase(),
    ...rowFile(state, reply, { measure: asked.measure }),
  }),
});
