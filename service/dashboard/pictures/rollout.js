/** View of attention rollout through all layers, over the picture. */

import { html, nothing } from '../core/html.js';
import { measureSwitch, scaleSwitch } from '../ui/controls.js';
import { NAMES, rolloutView, SAYS } from '../views/rollout.js';
import { lookControls, pictureBody, rowFile, saysFrom } from './maps.js';

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
