/** View of heads switched off: the effect on the embedding and on other heads. */

import { headDifferences } from '../api/compared-heads.js';
import { open } from '../api/reading.js';
import { isPending, shownOf } from '../core/answers.js';
import { html, nothing } from '../core/html.js';
import { namedMap, THUMBNAIL_SIDE } from '../core/maps.js';
import { largest } from '../core/matrix.js';
import { mapsWithDifference, figuresJson, figuresScene } from '../elements/three-maps.js';
import { headPad, nameOf, showHead, strongest } from '../ui/head-pad.js';
import { comparing, progressBar } from '../ui/progress.js';

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {{most?: boolean, layer: number, head: number}} Asked
 * @typedef {import('../ui/view-slot.js').Shown<Asked, Reply>} Shown
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {Object} Reply
 * @property {Reading} reading with heads switched off
 * @property {Float32Array|null} moved how far each head's map moved, `[L · N]`; null when all heads are on
 * @property {number} done number of heads that `moved` is of, from the first
 * @property {number} began time by `performance.now()`
 * @property {{layer: number, head: number}} place of the head whose maps these are
 * @property {Float32Array} before `[S, S]`
 * @property {Float32Array} after `[S, S]`
 * @typedef {Object} Figures how the maps before and after are drawn
 * @property {(store: Store, reply: Reply) => import('../core/html.js').Template} draw
 * @property {(store: Store, reply: Reply) => {scene: import('../draw/scene.js').Scene, json: Object, texts?: string[]}} file
 */

/** @type {Figures} */
const MAPS = {
  draw: (store, reply) => html`<three-maps .data=${figures(store, reply)}></three-maps>`,
  file: (store, reply) => {
    const data = figures(store, reply);
    return { scene: figuresScene(data), json: { maps: figuresJson(data) } };
  },
};

/**
 * Return the view with its maps drawn another way.
 *
 * @param {Figures} drawn
 * @returns {import('../ui/view-slot.js').View<Asked, Reply>}
 */
export const ablationWith = (drawn) => ({
  title: 'Ablation',
  asks: ({ most, off, layer, head }, reading) =>
    most && off.length ? { most, layer: 0, head: 0 } : reading.place({ layer, head }),

  async answer({ reading, asked, signal, showPart }) {
    const began = performance.now();
    const whole = await open({ texts: asked.texts, cut: asked.cut, off: [] }, signal);
    const at = async (/** @type {Float32Array|null} */ moved, /** @type {number} */ done) => {
      const place = asked.most && moved ? mostMoved(moved, reading) : reading.place(asked);
      const maps = [whole, reading].map((one) => one.map(place.layer, place.head, signal));
      const [before, after] = await Promise.all(maps);
      return { reading, moved, done, began, place, before, after };
    };
    const count = reading.layers * reading.heads;
    if (!reading.off.length) return at(null, count);
    if (!asked.most || reading.size > THUMBNAIL_SIDE) showPart(await at(null, 0));
    const moved = await headDifferences(whole, reading, signal, async (part, done) => {
      if (reading.size > THUMBNAIL_SIDE) showPart(await at(part, done));
    });
    return at(moved, count);
  },

  draw(store, shown) {
    const reading = shown?.reply.reading ?? store.reading?.reply;
    const place = shown?.reply.place;
    return html`<h2 id="view-title" tabindex="-1">Ablation</h2>
      ${
        reading
          ? html`<div class="ablation">
            <section aria-label="Switch heads off"><h3>Switch heads off</h3>${switches(store, reading)}${survey(store, reading)}</section>
            <section aria-label="The embedding’s shift"><h3>The embedding’s shift</h3>
              <output class="figure">${shown ? shiftOf(reading) : '–'}</output>
              <p class="says">1 − cosine between the embedding with all heads and without these.</p></section>
            <section aria-label="How far the maps moved"><h3>How far the maps moved</h3>${movements(store, shown, reading)}
              ${shown ? comparing(store, shown) : nothing}
              <p class="says">How much attention moved: the share of a row’s weight that went elsewhere, on average. Pick a head to see it.</p></section>
          </div>`
          : nothing
      }
      ${
        shown && place
          ? html`<h3>Layer ${place.layer} · Head ${place.head}${shown.asked.most && shown.reply.moved ? `, which moved most${isCompared(shown.reply) ? '' : ' so far'}` : ''}</h3>
          ${drawn.draw(store, shown.reply)}`
          : nothing
      }`;
  },

  says: ({ reply: { reading, place } }) =>
    `Switched off: ${reading.off.length}. Layer ${place.layer} head ${place.head} shown.`,

  file(store, { reply }) {
    const { reading, moved, done, place } = reply;
    const { scene, json, ...named } = drawn.file(store, reply);
    const survey = store.headShifts.answered;
    return {
      name: `ablation layer ${place.layer} head ${place.head}`,
      scene,
      ...named,
      json: {
        ...place,
        off: reading.off,
        pooled_shift: reading.shift,
        ...(moved ? { moved: [...moved.subarray(0, done)] } : {}),
        ...(survey ? { shift_alone: [...survey.reply.alone.subarray(0, survey.reply.done)] } : {}),
        ...json,
      },
    };
  },
});

export const ablationView = ablationWith(MAPS);

/** Whether all heads have been compared. @param {Reply} reply */
const isCompared = ({ done, reading }) => done === reading.layers * reading.heads;

/** @param {Float32Array} moved @param {Reading} reading */
function mostMoved(moved, reading) {
  const on = moved.map((change, place) =>
    reading.off.includes(nameOf(reading.headAt(place))) ? -1 : change,
  );
  return reading.headAt(largest(on, 1)[0]);
}

/** @param {Store} store @param {Reply} reply */
const figures = ({ state }, { reading, before, after }) =>
  mapsWithDifference(
    namedMap(before, reading, state),
    namedMap(after, reading, state),
    ['Before', 'After'],
    state.linear,
  );

/** @param {Reading} reading */
const shiftOf = ({ shift }) => (shift === 0 ? '0' : shift.toPrecision(3));

/**
 * Grid of switches; shades show the shift by each head alone.
 *
 * @param {Store} store
 * @param {Reading} reading
 */
function switches(store, reading) {
  const { off } = store.state;
  const measured = shownOf(store.headShifts.answer)?.reply;
  const { alone, done = 0 } = measured ?? {};
  const toggled = (/** @type {string} */ name) =>
    off.includes(name) ? off.filter((other) => other !== name) : [...off, name];
  return html`${headPad({
    label: 'Switch heads off',
    of: reading,
    values: alone ?? null,
    pressed: off,
    pick: (layer, head) => store.go({ off: toggled(nameOf({ layer, head })), most: true }),
    says: (place) => {
      const told = place < done ? `, shift alone ${alone?.[place].toPrecision(3)}` : ', not measured';
      return `${off.includes(nameOf(reading.headAt(place))) ? 'off' : 'on'}${alone ? told : ''}`;
    },
  })}
    <p class="says">${
      alone
        ? `Shade: the shift with that head alone switched off, up to ${strongest(alone).toPrecision(3)}.${done < alone.length ? ` ${done} of ${alone.length} heads are measured.` : ''}`
        : 'Click a head to switch it off, again to switch it on.'
    }</p>`;
}

/** @param {Store} store @param {Reading} reading */
function survey(store, { layers, heads }) {
  const { off } = store.state;
  const all = html`<button type="button" class="quiet" ?disabled=${off.length === 0} @click=${() => store.go({ off: [] })}>Switch all on</button>`;
  const done = shownOf(store.headShifts.answer)?.reply.done ?? 0;
  const measure = () => {
    if (done < layers * heads) store.headShifts.clear();
    store.measure();
  };
  const stop = () => {
    store.headShifts.halt();
    store.announce('Measuring stopped.');
  };
  return isPending(store.headShifts.answer)
    ? html`${progressBar('Heads measured', { done, began: store.headShifts.began }, layers * heads, stop)}
        <div class="controls">${all}</div>`
    : html`<div class="controls"><button type="button" class="quiet" @click=${measure}>Measure each head alone</button>${all}</div>`;
}

/** @param {Store} store @param {Shown|null} shown @param {Reading} reading */
function movements(store, shown, reading) {
  const moved = /** @type {Float32Array|null} */ (shown?.reply.moved ?? null);
  const { done = 0, place } = shown?.reply ?? {};
  return headPad({
    label: 'Show a head',
    of: reading,
    values: moved,
    pressed: place ? [nameOf(place)] : [],
    moves: true,
    pick: showHead(store),
    says: (i) => (moved && i >= done ? 'not compared yet' : `moved ${(moved?.[i] ?? 0).toFixed(3)}`),
  });
}
