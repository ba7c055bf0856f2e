/** View of all heads: where each looks from the chosen patch, as small overlays. */

import { memo } from '../core/memo.js';
import { contextOf } from '../draw/canvas.js';
import { CanvasSurface } from '../draw/canvas-and-svg.js';
import { headsView, thumbnailsBy } from '../views/all-heads.js';
import { html } from '../core/html.js';
import { fixed } from '../core/numbers.js';
import { themeColours } from '../draw/colours.js';
import { drawLayer, layerOf } from './drawing.js';
import { pictureOf } from './files.js';
import { HOW, lookControls, pictureMap, saysFrom, titleOf } from './maps.js';
import { fromOf, nameOf, specialsOf, viewOf } from './tokens.js';

/**
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {import('../draw/thumbnails.js').Small} Small
 * @typedef {import('../core/state.js').State} State
 */

/** Side of a thumbnail, in pixels. */
const SIDE = 128;
/** The most of the picture's height on the screen, in pixels. */
const TALL = 240;
/** Height of a thumbnail's note, in its pixels. */
const NOTE = 24;

/** Return the width of a crop as a share of its height, as far as thumbnails follow it. @param {number[]} crop */
const ratioOf = ([left, top, right, bottom]) => Math.max(0.2, Math.min(5, (right - left) / (bottom - top)));

/** Return the place of the crop in a thumbnail. @param {number[]} crop */
function fitted([left, top, right, bottom]) {
  const scale = SIDE / Math.max(right - left, bottom - top);
  const [width, height] = [(right - left) * scale, (bottom - top) * scale].map((side) => Math.max(8, side));
  return { x: (SIDE - width) / 2, y: (SIDE - height) / 2, width, height };
}

/** Write what a thumbnail cannot show over its lower edge. @param {CanvasSurface} surface @param {string} note */
function drawNote(surface, note) {
  const { ground, ink } = themeColours();
  surface.rect(0, SIDE - NOTE, SIDE, NOTE, ground, 0.85);
  surface.text(note, SIDE / 2, SIDE - NOTE / 2, { size: 16, align: 'center', bold: true, colour: ink });
}

/** Return the special token that has most of a row's weight, with the weight. @param {Reading} reading @param {Float32Array} row */
function noteOf({ tokens }, row) {
  const special = row.findIndex((weight) => weight > 0.5);
  return special < 0 ? undefined : `${tokens[special]} ${fixed(row[special], 2)}`;
}

/** Return the function that paints a thumbnail. The same arguments give the same function. */
const painter = memo(
  (/** @type {Reading} */ reading, /** @type {number} */ opacity, /** @type {boolean} */ smooth) => {
    const view = viewOf(reading);
    const { canvas: picture } = pictureOf(reading.texts[0]);
    const box = fitted(view.crop);
    const scale = picture.width / view.size[0];
    const [left, top, right, bottom] = view.crop.map((edge) => edge * scale);
    const under = document.createElement('canvas');
    under.width = SIDE;
    under.height = SIDE;
    contextOf(under).drawImage(
      picture,
      left,
      top,
      right - left,
      bottom - top,
      box.x,
      box.y,
      box.width,
      box.height,
    );
    /** @param {HTMLCanvasElement} canvas @param {Small|null} small @param {boolean} linear */
    return (canvas, small, linear) => {
      canvas.width = SIDE;
      canvas.height = SIDE;
      canvas.classList.add('fine');
      const context = contextOf(canvas);
      context.drawImage(under, 0, 0);
      if (!small) return;
      const layer = layerOf(small.values, 1 / small.keys, linear);
      const surface = new CanvasSurface(context);
      drawLayer(surface, layer, view, box, { opacity, smooth });
      if (small.note) drawNote(surface, small.note);
    };
  },
);

const thumbnails = thumbnailsBy(
  (state, reading) => painter(reading, state.opacity, state.smooth),
  () => html`<span class="says">Each head has its own scale.</span>`,
);

/**
 * @param {() => import('./maps.js').End} endOf returns the end that a click chooses
 * @returns {import('../ui/view-slot.js').View<{from: number}, import('../views/all-heads.js').Reply>}
 */
export const headsOfPicture = (endOf) => ({
  title: headsView.title,
  asks: (state, reading) => ({ from: fromOf(state, reading) }),

  async answer({ reading, asked: { from }, signal }) {
    const rows = await reading.attentionFrom([from], signal);
    const [specials, { grid }] = [specialsOf(reading), viewOf(reading)];
    const smalls = Array.from({ length: reading.layers * reading.heads }, (_, place) => ({
      values: rows.subarray(place * reading.size + specials, (place + 1) * reading.size),
      width: grid[1],
      height: grid[0],
      keys: reading.size,
      note: noteOf(reading, rows.subarray(place * reading.size, place * reading.size + specials)),
    }));
    return { reading, smalls, cross: new Float32Array(0) };
  },

  draw(store, shown) {
    const reading = shown?.reply.reading ?? store.reading?.reply;
    if (!reading) return html`<h2 id="view-title" tabindex="-1">All heads</h2>`;
    const map = pictureMap(store, reading, { layer: null, label: 'Picture', end: endOf(), tall: TALL });
    return html`<h2 id="view-title" tabindex="-1">All heads, from ${nameOf(reading, shown?.asked.from ?? fromOf(store.state, reading))}</h2>
      <div class="picture-heads" .style=${`--ratio: ${ratioOf(viewOf(reading).crop)}`}><div>${map}<p class="says">${HOW}</p><div class="controls">${lookControls(store)}</div></div>
        <div>${thumbnails.draw(store, shown)}</div></div>`;
  },

  says: (shown, _, state) => `${thumbnails.says(shown)} ${saysFrom(state, shown.reply.reading)}`,
  ready: thumbnails.ready,
  file(store, shown) {
    const { json, ...file } = thumbnails.file(store, shown);
    const { reading } = shown.reply;
    return {
      ...file,
      texts: [titleOf(store.state, reading)],
      json: { from: nameOf(reading, shown.asked.from), ...json },
    };
  },
});
