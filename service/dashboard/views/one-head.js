/** View of one head: its map, its statistics, and the quadrants of a pair. */

import { html, nothing, share } from '../core/html.js';
import { quadrants } from '../core/matrix.js';
import { tokenUnits } from '../core/words.js';
import { mapScene } from '../elements/map-view.js';
import { hideSinks, measureSwitch, partSwitch, scaleSwitch, weakestLink } from '../ui/controls.js';
import { definition } from '../ui/definition.js';
import { headPadOf } from '../ui/head-pad.js';
import { mapDataOf, mapJson, mapOf } from '../ui/map-panel.js';
import { overlaidBeside, overlayControls, overlayOf } from '../ui/overlaid-heads.js';

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {import('../ui/overlaid-heads.js').Place & {measure: import('../core/maps.js').Measure, overlaid: import('../ui/overlaid-heads.js').Toned[]}} Asked
 * @typedef {import('../ui/view-slot.js').Shown<Asked, Reply>} Shown
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {import('../ui/overlaid-heads.js').OverlaidHead} OverlaidHead
 * @typedef {{reading: Reading, weights: Float32Array, overlaid: OverlaidHead[]}} Reply `weights` `[S, S]`
 */

/** Behaviours whose weight rests on special tokens. */
const SINKS = ['cls', 'sep'];

/** @param {{layer: number, head: number, measure: string}} asked */
export const titled = ({ layer, head, measure }) =>
  `Layer ${layer} head ${head}${measure === 'norms' ? ' norms' : ''}`;
export const NORMS =
  'How long the vector is that each token adds to each other one through this head: the weight times the length of what is passed on (Kobayashi et al. 2020). A token that is looked at and adds nothing, as a separator often is, has a large weight and a small norm. Statistics and labels are of weights.';

/** @param {import('../core/state.js').State} state @param {Shown} shown */
const dataOfHead = (state, { asked, reply }) =>
  mapDataOf(state, reply, titled(asked), asked.measure, overlayOf(state, reply, asked));

/** @type {import('../ui/view-slot.js').View<Asked, Reply>} */
export const headView = {
  title: 'One head',
  asks(state, reading) {
    const place = reading.place(state);
    return { ...place, measure: state.measure, overlaid: overlaidBeside(state, reading, place) };
  },

  async answer({ reading, asked, signal }) {
    const mapAt = (/** @type {{layer: number, head: number}} */ { layer, head }) =>
      reading.map(layer, head, signal, asked.measure);
    const [weights, ...others] = await Promise.all([asked, ...asked.overlaid].map(mapAt));
    const overlaid = others.map((one, i) => ({ ...asked.overlaid[i], weights: one }));
    return { reading, weights, overlaid };
  },

  draw(store, shown) {
    const reading = shown?.reply.reading ?? store.reading?.reply;
    const { layer, head } = shown?.asked ?? reading?.place(store.state) ?? store.state;
    return html`<div class="head-title"><h2 id="view-title" tabindex="-1">Layer ${layer} · Head ${head}</h2>
        ${shown ? behaviour(store, shown.reply.reading, layer, head) : nothing}</div>
      <div class="controls">${measureSwitch(store)}${shown ? html`${partSwitch(store, shown.reply.reading.texts.length === 2)}${weakestLink(store, shown.asked.measure)}${scaleSwitch(store)}${overlayControls(store, shown.reply.reading, { layer, head })}` : nothing}</div>
      ${shown?.asked.measure === 'norms' ? html`<p class="says">${NORMS}</p>` : nothing}
      <div class="head-body">${reading ? headPadOf(store, reading) : nothing}${shown ? mapOf(store, dataOfHead(store.state, shown)) : nothing}</div>
      ${
        shown
          ? html`${facts(shown.reply.reading, layer, head)}
          ${shown.reply.reading.texts.length === 2 && shown.asked.measure === 'weights' ? quadrantTable(shown.reply) : nothing}`
          : nothing
      }`;
  },

  says: ({ asked }) =>
    `${titled(asked)} shown${asked.overlaid.length ? `, with ${asked.overlaid.length} overlaid` : ''}.`,

  file({ state }, shown) {
    const { layer, head, measure } = shown.asked;
    const { reading, weights } = shown.reply;
    const data = dataOfHead(state, shown);
    return {
      name: titled(shown.asked).toLowerCase(),
      scene: mapScene(data),
      json: {
        layer,
        head,
        label: reading.labelOf(layer, head),
        statistics: reading.statisticsOf(layer, head),
        ...(reading.texts.length === 2 && measure === 'weights'
          ? { quadrants: quadrants(weights, tokenUnits(reading)) }
          : {}),
        ...mapJson(data),
        ...(data.options.overlay.others.length
          ? {
              overlaid: data.options.overlay.others.map(({ name, map }) => ({
                name,
                ...mapJson({ ...data, map }),
              })),
            }
          : {}),
      },
    };
  },
};

/**
 * Name of the head's behaviour and, of texts, a way to see what is left where a sink swamps it.
 *
 * @param {Store} store
 * @param {Reading} reading
 * @param {number} layer
 * @param {number} head
 */
export function behaviour(store, reading, layer, head) {
  const label = reading.labelOf(layer, head);
  if (!label) return html`<p class="says">No single behaviour dominates.</p>`;
  const { name, says } = reading.names.labels[label];
  return html`<p class="says">${definition(name, says)}${SINKS.includes(label) && !reading.view ? html` ${hideSinks(store)}` : nothing}</p>`;
}

/** @param {Reading} reading @param {number} layer @param {number} head */
export function facts(reading, layer, head) {
  const statistics = reading.statisticsOf(layer, head);
  return html`<dl class="statistics">${Object.entries(reading.names.statistics).map(
    ([name, { name: called, says }]) => html`<div><dt>${definition(called, says)}</dt>
        <dd data-statistic=${name}>${statistics[name].toFixed(3)}</dd></div>`,
  )}</dl>`;
}

/** @param {Reply} reply */
function quadrantTable({ reading, weights }) {
  const names = ['tokens', 'to the first', 'to the second', 'to special tokens'];
  const rows = quadrants(weights, tokenUnits(reading)).map(
    (row, segment) => html`<tr><th scope="row">from the ${segment ? 'second' : 'first'}</th>
      ${row.map((value) => html`<td class="shaded" .style=${share(value)}>${value.toFixed(3)}</td>`)}</tr>`,
  );
  return html`<div class="quadrants"><table>
    <caption>Where each text looks, on average over its own tokens</caption>
    <thead><tr>${names.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead><tbody>${rows}</tbody></table></div>`;
}
