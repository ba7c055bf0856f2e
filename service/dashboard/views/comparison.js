/** View of the same heads on another text. */

import { OtherTextError } from '../api/errors.js';
import { headDifferences } from '../api/head-differences.js';
import { open } from '../api/reading.js';
import { html, nothing } from '../core/html.js';
import { namedMap } from '../core/maps.js';
import { largest } from '../core/matrix.js';
import { fixed } from '../core/numbers.js';
import { mapsWithDifference, figuresJson, figuresScene } from '../elements/three-maps.js';
import { definition } from '../ui/definition.js';
import { headPad } from '../ui/head-pad.js';
import { otherTextProblem } from '../ui/problems.js';
import { comparing } from '../ui/progress.js';
import { textField } from '../ui/text-field.js';
import { textNotes } from '../ui/text-notes.js';

const MOST_DIFFERENT = 6;

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {{other: string, layer: number, head: number}} Asked
 * @typedef {import('../ui/view-slot.js').Shown<Asked, Reply>} Shown
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {Object} Reply
 * @property {Reading} reading
 * @property {Reading} other
 * @property {Float32Array|null} differences of each head, `[L · N]`; null until the first have come
 * @property {number} done number of heads that `differences` is of, from the first
 * @property {number} began time by `performance.now()`
 * @property {Float32Array[]} maps of both
 */

/** @type {import('../ui/view-slot.js').View<Asked, Reply>} */
export const comparisonView = {
  title: 'Comparison',
  asks: (state, reading) => ({ other: state.c, ...reading.place(state) }),

  async answer({ reading, asked, signal, showPart }) {
    const began = performance.now();
    const source = { texts: [asked.other], cut: asked.cut, off: reading.off };
    const other = await open(source, signal).catch((error) => {
      throw new OtherTextError(error);
    });
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
      ${shown ? textNotes(shown.reply.other, 'The other text') : nothing}
      ${
        shown
          ? html`<div class="comparison">
            <section aria-label="Where they differ"><h3>Where they differ</h3>${differencePad(store, shown)}${comparing(store, shown)}</section>
            <section aria-label="Most different heads"><h3>Most different heads</h3>${ranking(store, shown.reply)}</section>
            <section aria-label="Statistics"><h3>Layer ${shown.asked.layer} · Head ${shown.asked.head}</h3>${table(shown)}</section>
          </div>
          <three-maps .data=${figures(store, shown.reply)}></three-maps>`
          : nothing
      }`;
  },

  says: ({ asked: { layer, head } }) => `Layer ${layer} head ${head} of both texts shown.`,

  file(store, { asked, reply }) {
    const data = figures(store, reply);
    return {
      name: `comparison layer ${asked.layer} head ${asked.head}`,
      scene: figuresScene(data),
      json: {
        layer: asked.layer,
        head: asked.head,
        other: asked.other,
        differences: reply.differences && [...reply.differences.subarray(0, reply.done)],
        maps: figuresJson(data),
      },
    };
  },
};

/** @param {Store} store @param {Reply} reply */
function figures({ state }, { reading, other, maps }) {
  const [first, second] = [reading, other].map((one, i) => namedMap(maps[i], one, state));
  return mapsWithDifference(first, second, ['Text', 'Other text'], state.linear);
}

/** @param {Store} store @param {Shown} shown */
function differencePad(store, { reply }) {
  const { reading, other, differences } = reply;
  const most = differences ? Math.max(...differences, 1e-12) : 1;
  const asked = reading.place(store.state);
  return html`${headPad({
    label: 'Heads, by how far they differ',
    layers: reading.layers,
    heads: reading.heads,
    moves: true,
    pick: (layer, head, byKey) => store.go({ layer, head, most: false }, { replace: byKey }),
    cell: (layer, head) => {
      const value = differences?.[layer * reading.heads + head] ?? 0;
      return {
        value: value / most,
        pressed: layer === asked.layer && head === asked.head,
        says: `differs by ${value.toFixed(3)}`,
      };
    },
  })}
    <p class="says">${
      other.size === reading.size
        ? 'How much attention moved: the share of a row’s weight that lies elsewhere. Both texts have equally many tokens.'
        : 'The texts differ in length: the mean difference of confidence and shares.'
    }</p>`;
}

/** @param {Store} store @param {Reply} reply */
function ranking(store, { reading: { heads }, differences }) {
  if (!differences) return nothing;
  const chip = (/** @type {number} */ place) => {
    const [layer, head] = [Math.floor(place / heads), place % heads];
    return html`<li><button type="button" class="chip" @click=${() => store.go({ layer, head, most: false })}
      >${`${layer}·${head}  ${differences[place].toFixed(3)}`}</button></li>`;
  };
  return html`<ol class="ranking">${largest(differences, MOST_DIFFERENT).map(chip)}</ol>`;
}

/** @param {Shown} shown */
function table({ asked: { layer, head }, reply }) {
  const [first, second] = [reply.reading, reply.other].map((one) => one.statisticsOf(layer, head));
  const rows = Object.entries(reply.reading.names.statistics).map(
    ([name, { name: called, says }]) => html`<tr><th scope="row">${definition(called, says)}</th>
      ${[first[name], second[name], second[name] - first[name]].map((value) => html`<td class="number">${fixed(value, 3)}</td>`)}</tr>`,
  );
  const names = ['Statistic', 'Text', 'Other text', 'Difference'].map(
    (name, i) => html`<th scope="col" class=${i ? 'number' : ''}>${name}</th>`,
  );
  return html`<table><thead><tr>${names}</tr></thead><tbody>${rows}</tbody></table>`;
}
