/** View of one text in two models: a head of each, and the most similar heads of the other model. */

import { othersOf } from '../api/service-info.js';
import { OtherTextError } from '../api/errors.js';
import { haveSameWords, headDistances } from '../api/head-distances.js';
import { open } from '../api/reading.js';
import { html, nothing } from '../core/html.js';
import { namedMap } from '../core/maps.js';
import { largest } from '../core/matrix.js';
import { fixed } from '../core/numbers.js';
import { STATISTICS } from '../core/statistics.js';
import { mapsWithDifference, figuresJson, figuresScene } from '../elements/three-maps.js';
import { choice } from '../ui/controls.js';
import { definition } from '../ui/definition.js';
import { headPad, headPadOf } from '../ui/head-pad.js';
import { otherTextProblem } from '../ui/problems.js';
import { textNotes } from '../ui/text-notes.js';

const MOST_ALIKE = 6;
/** Value of `against` for the most similar head of the other model. */
const ALIKE = 'alike';

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {{other: string, against: string, layer: number, head: number}} Asked
 * @typedef {import('../ui/view-slot.js').Shown<Asked, Reply>} Shown
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {Object} Reply
 * @property {Reading} reading
 * @property {Reading} other of the other model
 * @property {Float32Array|null} apart of each head of the other, `[L · N]`; null where the words differ
 * @property {{layer: number, head: number}} place the head of the other that is shown
 * @property {Float32Array[]} maps of both
 */

/** @type {import('../ui/view-slot.js').View<Asked, Reply>} */
export const modelsView = {
  title: 'Two models',
  asks(state, reading, store) {
    const other = otherOf(store);
    return other ? { other, against: state.against, ...reading.place(state) } : null;
  },

  async answer({ reading, asked, signal }) {
    const source = { texts: asked.texts, cut: asked.cut, off: [], model: asked.other };
    const other = await open(source, signal, true).catch((error) => {
      throw signal.aborted ? error : new OtherTextError(error);
    });
    const own = await reading.map(asked.layer, asked.head, signal);
    const apart = haveSameWords(reading, other) ? await headDistances(reading, own, other, signal) : null;
    const place = other.place(placeOf(asked.against, apart, other.heads));
    const maps = [own, await other.map(place.layer, place.head, signal)];
    return { reading, other, apart, place, maps };
  },

  draw(store, shown) {
    const others = othersOf(store.info);
    const options = others.map((name) => ({ value: name, label: name }));
    const choose = (/** @type {string} */ name) => store.go({ other: name, against: ALIKE });
    return html`<h2 id="view-title" tabindex="-1">Two models</h2>
      ${others.length ? html`<div class="controls">${choice('Other model', options, otherOf(store) ?? '', choose)}</div>` : nothing}
      ${others.length || !store.service.answered ? nothing : html`<p class="says">This service has one model.</p>`}
      ${otherTextProblem(store)}
      ${shown ? both(store, shown) : nothing}`;
  },

  says: ({ asked: { layer, head } }) => `Layer ${layer} head ${head} in two models shown.`,

  file({ state }, { asked, reply }) {
    const { place, apart } = reply;
    const data = figures(state, reply);
    return {
      name: `two models layer ${asked.layer} head ${asked.head}`,
      scene: figuresScene(data),
      json: {
        layer: asked.layer,
        head: asked.head,
        other: { model: asked.other, ...place },
        distances: apart && [...apart],
        maps: figuresJson(data),
      },
    };
  },
};

/** @param {Store} store */
function otherOf(store) {
  const others = othersOf(store.info);
  return others.includes(store.state.other) ? store.state.other : (others[0] ?? null);
}

/** @param {string} against @param {Float32Array|null} apart @param {number} heads of a layer of the other */
function placeOf(against, apart, heads) {
  if (against !== ALIKE) {
    const [layer, head] = against.split('.').map(Number);
    return { layer, head };
  }
  const [nearest] = apart
    ? largest(
        apart.map((value) => -value),
        1,
      )
    : [0];
  return { layer: Math.floor(nearest / heads), head: nearest % heads };
}

/** @param {Store} store @param {Shown} shown */
function both(store, { asked, reply }) {
  const { reading, other, apart, place } = reply;
  return html`<div class="comparison">
      <section aria-label="This model"><h3>Layer ${asked.layer} · Head ${asked.head} of this model</h3>
        ${headPadOf(store, reading)}<p class="says">${counted(reading)}</p></section>
      <section aria-label="Other model"><h3>Layer ${place.layer} · Head ${place.head} of ${asked.other}</h3>
        ${otherPad(store, reply)}<p class="says">${counted(other)}</p>${textNotes(other)}</section>
      <section aria-label="Most alike heads"><h3>Most like it in ${asked.other}</h3>
        ${apart ? ranking(store, reply, apart) : html`<p class="says">The models cut this text into different words: their heads are not compared.</p>`}
        ${table(asked, reply)}</section>
    </div>
    <three-maps .data=${figures(store.state, reply)}></three-maps>`;
}

/** Return the names of statistics; shares of special tokens have the models' own only if both have the same. @param {Reading} reading @param {Reading} other */
function commonNames({ names }, other) {
  const isSame = JSON.stringify(names.statistics) === JSON.stringify(other.names.statistics);
  return isSame ? names.statistics : STATISTICS;
}

/** @param {Reading} reading */
const counted = ({ size, layers, heads }) => `${size} tokens · ${layers} × ${heads} heads`;

/**
 * Grid of the other model's heads, shaded by similarity, or by confidence without a similarity.
 *
 * @param {Store} store
 * @param {Reply} reply
 */
function otherPad(store, { other, apart, place }) {
  const confidence = other.statistics.confidence;
  return headPad({
    label: 'Heads of the other model',
    layers: other.layers,
    heads: other.heads,
    moves: true,
    pick: (layer, head, byKey) => store.go({ against: `${layer}.${head}` }, { replace: byKey }),
    cell: (layer, head) => {
      const i = layer * other.heads + head;
      return {
        value: apart ? 1 - apart[i] : confidence[i],
        pressed: layer === place.layer && head === place.head,
        says: apart ? `${apart[i].toFixed(3)} elsewhere` : `Confidence ${confidence[i].toFixed(2)}`,
      };
    },
  });
}

/** @param {Store} store @param {Reply} reply @param {Float32Array} apart */
function ranking(store, { other: { heads } }, apart) {
  const chip = (/** @type {number} */ i) => {
    const [layer, head] = [Math.floor(i / heads), i % heads];
    return html`<li><button type="button" class="chip" @click=${() => store.go({ against: `${layer}.${head}` })}
      >${`${layer}·${head}  ${apart[i].toFixed(3)}`}</button></li>`;
  };
  const nearest = largest(
    apart.map((value) => -value),
    MOST_ALIKE,
  );
  return html`<ol class="ranking">${nearest.map(chip)}</ol>
    <p class="says">The share of a word’s attention that goes elsewhere, on average; special tokens count as one word.</p>`;
}

/** @param {{layer: number, head: number}} asked @param {Reply} reply */
function table({ layer, head }, { reading, other, place }) {
  const [first, second] = [reading.statisticsOf(layer, head), other.statisticsOf(place.layer, place.head)];
  const rows = Object.entries(commonNames(reading, other)).map(
    ([name, { name: called, says }]) => html`<tr><th scope="row">${definition(called, says)}</th>
      ${[first[name], second[name]].map((value) => html`<td class="number">${fixed(value, 3)}</td>`)}</tr>`,
  );
  const names = ['Statistic', 'This', 'Other'].map(
    (name, i) => html`<th scope="col" class=${i ? 'number' : ''}>${name}</th>`,
  );
  return html`<table><thead><tr>${names}</tr></thead><tbody>${rows}</tbody></table>`;
}

/** @param {import('../core/state.js').State} state @param {Reply} reply */
function figures(state, { reading, other, maps }) {
  const [first, second] = [reading, other].map((one, i) => namedMap(maps[i], one, state));
  const labels = [first, second].map((map) => map.rows.map(({ label }) => label.trim()).join(' '));
  return mapsWithDifference(
    first,
    second,
    ['This model', 'Other model'],
    state.linear,
    labels[0] === labels[1],
  );
}
