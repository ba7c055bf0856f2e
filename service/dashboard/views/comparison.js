/** Views of two readings side by side: the same heads on another text, and one text in another model. */

import { haveSameWords, headDifferences, headDistances } from '../api/compared-heads.js';
import { inOtherText } from '../api/errors.js';
import { open } from '../api/reading.js';
import { othersOf } from '../api/service-info.js';
import { html, nothing } from '../core/html.js';
import { namedMap } from '../core/maps.js';
import { largest } from '../core/matrix.js';
import { fixed } from '../core/numbers.js';
import { STATISTICS } from '../core/statistics.js';
import { mapsWithDifference, figuresJson, figuresScene } from '../elements/three-maps.js';
import { choice } from '../ui/controls.js';
import { definition } from '../ui/definition.js';
import { headPad, headPadOf, headsByValue, nameOf, showHead } from '../ui/head-pad.js';
import { otherTextProblem } from '../ui/problems.js';
import { comparing } from '../ui/progress.js';
import { textField } from '../ui/text-field.js';
import { textNotes } from '../ui/text-notes.js';

/** Value of `against` for the most similar head of the other model. */
const ALIKE = 'alike';

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {import('../core/state.js').State} State
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {{layer: number, head: number}} Place
 * @typedef {{reading: Reading, other: Reading, maps: Float32Array[]}} Both a head of each, whose maps these are
 *
 * @typedef {Object} Compared
 * @property {Float32Array|null} differences of each head, `[L · N]`; null until the first have come
 * @property {number} done number of heads that `differences` is of, from the first
 * @property {number} began time by `performance.now()`
 * @typedef {Both & Compared} OfText
 * @typedef {import('../ui/view-slot.js').Shown<Place & {other: string}, OfText>} TextShown
 *
 * @typedef {Object} InModel
 * @property {Float32Array|null} apart of each head of the other, `[L · N]`; null where the words differ
 * @property {Place} place the head of the other that is shown
 * @typedef {Both & InModel} OfModel
 * @typedef {import('../ui/view-slot.js').Shown<Place & {other: string, against: string}, OfModel>} ModelShown
 */

/** @type {import('../ui/view-slot.js').View<Place & {other: string}, OfText>} */
export const comparisonView = {
  title: 'Comparison',
  asks: (state, reading) => ({ other: state.c, ...reading.place(state) }),

  async answer({ reading, asked, signal, showPart }) {
    const began = performance.now();
    const source = { texts: [asked.other], cut: asked.cut, off: reading.off };
    const other = await open(source, signal).catch(inOtherText);
    const maps = await Promise.all([reading, other].map((one) => one.map(asked.layer, asked.head, signal)));
    const known = { reading, other, maps, began };
    showPart({ ...known, differences: null, done: 0 });
    const differences = await headDifferences(reading, other, signal, (part, done) =>
      showPart({ ...known, differences: part, done }),
    );
    return { ...known, differences, done: differences.length };
  },

  draw(store, shown) {
    return html`<h2 id="view-title" tabindex="-1">Comparison</h2>
      ${textField(store, { id: 'text-c', label: 'Other text', value: store.state.c, patch: (text) => ({ c: text }) })}
      ${otherTextProblem(store)}
      ${shown ? bothTexts(store, shown) : nothing}`;
  },

  says: ({ asked: { layer, head } }) => `Layer ${layer} head ${head} of both texts shown.`,

  file({ state }, { asked: { layer, head, other }, reply }) {
    const data = textFigures(state, reply);
    const differences = reply.differences && [...reply.differences.subarray(0, reply.done)];
    return {
      name: `comparison layer ${layer} head ${head}`,
      scene: figuresScene(data),
      json: { layer, head, other, differences, maps: figuresJson(data) },
    };
  },
};

/** @type {import('../ui/view-slot.js').View<Place & {other: string, against: string}, OfModel>} */
export const modelsView = {
  title: 'Two models',
  asks(state, reading, store) {
    const other = otherOf(store);
    return other ? { other, against: state.against, ...reading.place(state) } : null;
  },

  async answer({ reading, asked, signal }) {
    const source = { texts: asked.texts, cut: asked.cut, off: [], model: asked.other };
    const other = await open(source, signal, true).catch(inOtherText);
    const own = await reading.map(asked.layer, asked.head, signal);
    const apart = haveSameWords(reading, other) ? await headDistances(reading, own, other, signal) : null;
    const place = other.place(placeOf(asked.against, apart, other));
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
      ${shown ? bothModels(store, shown) : nothing}`;
  },

  says: ({ asked: { layer, head } }) => `Layer ${layer} head ${head} in two models shown.`,

  file({ state }, { asked: { layer, head, other }, reply: { apart, place, ...both } }) {
    const data = modelFigures(state, both);
    return {
      name: `two models layer ${layer} head ${head}`,
      scene: figuresScene(data),
      json: {
        layer,
        head,
        other: { model: other, ...place },
        distances: apart && [...apart],
        maps: figuresJson(data),
      },
    };
  },
};

/** @param {State} state @param {Both} both @returns {import('../core/maps.js').NamedMap[]} */
const named = (state, { reading, other, maps }) =>
  [reading, other].map((one, i) => namedMap(maps[i], one, state));

/** @param {State} state @param {Both} both */
function textFigures(state, both) {
  const [first, second] = named(state, both);
  return mapsWithDifference(first, second, ['Text', 'Other text'], state.linear);
}

/** Maps of both models, with their difference if both have the same tokens. @param {State} state @param {Both} both */
function modelFigures(state, both) {
  const [first, second] = named(state, both);
  const labels = [first, second].map((map) => map.rows.map(({ label }) => label.trim()).join(' '));
  return mapsWithDifference(
    first,
    second,
    ['This model', 'Other model'],
    state.linear,
    labels[0] === labels[1],
  );
}

/** @param {Store} store @param {TextShown} shown */
function bothTexts(store, shown) {
  const { layer, head } = shown.asked;
  const { reading, other, differences } = shown.reply;
  const pad = headPad({
    label: 'Heads, by how far they differ',
    of: reading,
    values: differences,
    pressed: [nameOf(reading.place(store.state))],
    moves: true,
    pick: showHead(store),
    says: (place) => `differs by ${(differences?.[place] ?? 0).toFixed(3)}`,
  });
  const [one, two] = [reading, other].map((each) => each.statisticsOf(layer, head));
  const difference = Object.fromEntries(Object.keys(one).map((name) => [name, two[name] - one[name]]));
  const columns = { Text: one, 'Other text': two, Difference: difference };
  return html`${textNotes(other, 'The other text')}<div class="comparison">
      <section aria-label="Where they differ"><h3>Where they differ</h3>${pad}
        <p class="says">${
          other.size === reading.size
            ? 'How much attention moved: the share of a row’s weight that lies elsewhere. Both texts have equally many tokens.'
            : 'The texts differ in length: the mean difference of confidence and shares.'
        }</p>${comparing(store, shown)}</section>
      <section aria-label="Most different heads"><h3>Most different heads</h3>${differences ? headsByValue(reading, differences, showHead(store)) : nothing}</section>
      <section aria-label="Statistics"><h3>Layer ${layer} · Head ${head}</h3>${statistics(reading.names.statistics, columns)}</section>
    </div>
    <three-maps .data=${textFigures(store.state, shown.reply)}></three-maps>`;
}

/** @param {Store} store @param {ModelShown} shown */
function bothModels(store, { asked, reply }) {
  const { reading, other, apart, place } = reply;
  const { confidence } = other.statistics;
  const pick = (/** @type {number} */ layer, /** @type {number} */ head, /** @type {boolean} */ byKey) =>
    store.go({ against: nameOf({ layer, head }) }, { replace: byKey });
  const pad = headPad({
    label: 'Heads of the other model',
    of: other,
    values: apart ? apart.map((distance) => 1 - distance) : confidence,
    most: 1,
    pressed: [nameOf(place)],
    moves: true,
    pick,
    says: (i) => (apart ? `${apart[i].toFixed(3)} elsewhere` : `Confidence ${confidence[i].toFixed(2)}`),
  });
  // shares of special tokens have the models' own names only if both have the same
  const isSame = JSON.stringify(reading.names.statistics) === JSON.stringify(other.names.statistics);
  const columns = {
    This: reading.statisticsOf(asked.layer, asked.head),
    Other: other.statisticsOf(place.layer, place.head),
  };
  return html`<div class="comparison">
      <section aria-label="This model"><h3>Layer ${asked.layer} · Head ${asked.head} of this model</h3>
        ${headPadOf(store, reading)}<p class="says">${counted(reading)}</p></section>
      <section aria-label="Other model"><h3>Layer ${place.layer} · Head ${place.head} of ${asked.other}</h3>
        ${pad}<p class="says">${counted(other)}</p>${textNotes(other)}</section>
      <section aria-label="Most alike heads"><h3>Most like it in ${asked.other}</h3>
        ${
          apart
            ? html`${headsByValue(other, apart, pick, -1)}
              <p class="says">The share of a word’s attention that goes elsewhere, on average; special tokens count as one word.</p>`
            : html`<p class="says">The models cut this text into different words: their heads are not compared.</p>`
        }
        ${statistics(isSame ? reading.names.statistics : STATISTICS, columns)}</section>
    </div>
    <three-maps .data=${modelFigures(store.state, reply)}></three-maps>`;
}

/** Return the name of the other model; null where the service has one. @param {Store} store */
function otherOf({ info, state }) {
  const others = othersOf(info);
  return others.includes(state.other) ? state.other : (others[0] ?? null);
}

/** @param {string} against @param {Float32Array|null} apart @param {Reading} other @returns {Place} */
function placeOf(against, apart, other) {
  if (against === ALIKE)
    return other.headAt(
      largest(
        (apart ?? new Float32Array(1)).map((distance) => -distance),
        1,
      )[0],
    );
  const [layer, head] = against.split('.').map(Number);
  return { layer, head };
}

/** @param {Reading} reading */
const counted = ({ size, layers, heads }) => `${size} tokens · ${layers} × ${heads} heads`;

/** @param {typeof STATISTICS} names @param {Object<string, Object<string, number>>} columns statistics by title */
function statistics(names, columns) {
  const titles = ['Statistic', ...Object.keys(columns)];
  const rows = Object.entries(names).map(
    ([name, { name: called, says }]) => html`<tr><th scope="row">${definition(called, says)}</th>
      ${Object.values(columns).map((values) => html`<td class="number">${fixed(values[name], 3)}</td>`)}</tr>`,
  );
  return html`<table><thead><tr>${titles.map((title, i) => html`<th scope="col" class=${i ? 'number' : ''}>${title}</th>`)}</tr></thead><tbody>${rows}</tbody></table>`;
}
