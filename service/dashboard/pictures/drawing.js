/**
 * A map over a picture.
 *
 * @typedef {import('./geometry.js').View} View
 * @typedef {import('./geometry.js').Box} Box
 * @typedef {{values: Float32Array, full: number, keys: number, linear: boolean, signed: boolean}} Layer
 *   `values` `[rows, columns]`; the others as in `paint`
 * @typedef {Object} Drawn
 * @property {import('./files.js').Picture} picture
 * @property {View} view
 * @property {Layer|null} layer
 * @property {number} opacity
 * @property {boolean} smooth
 * @property {number} from patch that looks, or −1
 * @property {number} to patch that is looked at, or −1
 */

import { peak } from '../core/matrix.js';
import { memo } from '../core/memo.js';
import { paint, theme, themeColours } from '../draw/colours.js';
import { drawColourBar } from '../draw/heatmap-labels.js';
import { drawnSize, interpolated, placing } from './geometry.js';

/** Room of a picture in a file, in pixels. */
const FILE = [640, 640];
const BAR = { gap: 12, height: 34, width: 300 };
/** Longest side of an interpolated map, and the most by which a map is enlarged. */
const SMOOTH = { side: 512, factor: 16 };
/** Opacity of the veil over what the model does not see. */
const VEIL = 0.6;

/**
 * Return the scale of colours of weights: even attention is a quarter of the way to the strongest colour, or
 * weaker where the strongest weight is less than four times as large.
 *
 * @param {number} strongest weight that is drawn
 * @param {number} even weight of each token under even attention
 * @param {boolean} linear whether colours are in proportion to weights
 */
export function scaleOf(strongest, even, linear) {
  const full = linear ? strongest : Math.max(strongest, 4 * even);
  return { full, keys: full / even, linear };
}

/**
 * Return the layer of a row's weights.
 *
 * @param {Float32Array} values `[rows · columns]` of the patches
 * @param {number} even as in `scaleOf`
 * @param {boolean} linear
 * @returns {Layer}
 */
export const layerOf = memo(
  (/** @type {Float32Array} */ values, /** @type {number} */ even, /** @type {boolean} */ linear) => ({
    values,
    signed: false,
    ...scaleOf(peak(values), even, linear),
  }),
  12,
);

/** Return a layer as an image. */
const imageOf = memo(
  /** @param {Layer} layer @param {number} rows @param {number} columns @param {boolean} smooth @param {string} _theme */
  ({ values, full, keys, linear, signed }, rows, columns, smooth, _theme) => {
    const room = Math.floor(SMOOTH.side / Math.max(rows, columns));
    const factor = smooth ? Math.max(1, Math.min(SMOOTH.factor, room)) : 1;
    const canvas = document.createElement('canvas');
    const cells = factor === 1 ? values : interpolated(values, rows, columns, factor);
    paint(canvas, cells, columns * factor, rows * factor, { linear, signed, keys, full, over: true });
    return canvas;
  },
  12,
);

/** @param {HTMLCanvasElement} image @returns {number[]} all of it */
const whole = ({ width, height }) => [0, 0, width, height];

/**
 * Draw a picture with its map and marks.
 *
 * @param {import('../draw/canvas-and-svg.js').Surface} surface
 * @param {Drawn} drawn
 * @param {number[]} size width and height
 * @param {number} [pointed] patch under the pointer, or −1
 */
export function drawPicture(
  surface,
  { picture, view, layer, opacity, smooth, from, to },
  size,
  pointed = -1,
) {
  const colours = themeColours();
  const place = placing(view, size);
  const { x, y, width, height } = place.picture;
  surface.picture(picture.canvas, whole(picture.canvas), x, y, width, height, { smooth: true });
  for (const box of around(place.crop, size))
    surface.rect(box.x, box.y, box.width, box.height, colours.ground, VEIL);
  if (layer) drawLayer(surface, layer, view, place.crop, { opacity, smooth });
  surface.frame(place.crop.x, place.crop.y, place.crop.width, place.crop.height, colours.soft);
  if (pointed >= 0) drawMark(surface, place.patch(pointed), colours.ink, colours);
  if (to >= 0) drawMark(surface, place.patch(to), colours.mark, colours);
  if (from >= 0) drawMark(surface, place.patch(from), colours.line, colours);
}

/**
 * @param {import('../draw/canvas-and-svg.js').Surface} surface
 * @param {Layer} layer
 * @param {View} view
 * @param {Box} box
 * @param {{opacity: number, smooth: boolean}} look
 */
export function drawLayer(surface, layer, { grid: [rows, columns] }, box, { opacity, smooth }) {
  const image = imageOf(layer, rows, columns, smooth, theme());
  surface.picture(image, whole(image), box.x, box.y, box.width, box.height, { smooth, alpha: opacity });
}

/** Return the four boxes around a box, at whole pixels, so that no seam is seen. @param {Box} inner @param {number[]} size */
function around({ x, y, width, height }, [wide, high]) {
  const [left, top, right, bottom] = [x, y, x + width, y + height].map(Math.round);
  return [
    { x: 0, y: 0, width: wide, height: top },
    { x: 0, y: bottom, width: wide, height: high - bottom },
    { x: 0, y: top, width: left, height: bottom - top },
    { x: right, y: top, width: wide - right, height: bottom - top },
  ].filter((box) => box.width > 0 && box.height > 0);
}

/** Frame a patch so that it is seen on any picture. @param {import('../draw/canvas-and-svg.js').Surface} surface @param {Box} box @param {string} colour @param {import('../draw/colours.js').Theme} colours */
function drawMark(surface, { x, y, width, height }, colour, { ground }) {
  [ground, colour, colour, ground].forEach((one, i) => {
    const grown = 2 - i;
    surface.frame(x - grown, y - grown, width + 2 * grown, height + 2 * grown, one);
  });
}

/** Return the height of the bar of colours of a layer. @param {Layer|null} layer */
export const barHeight = (layer) => (layer ? BAR.gap + BAR.height : 0);

/** Draw the bar of colours under a picture. @param {import('../draw/canvas-and-svg.js').Surface} surface @param {Layer} layer @param {number[]} size of the picture */
export const drawBar = (surface, layer, [width, height]) =>
  drawColourBar(surface, 0, height + BAR.gap, Math.min(BAR.width, Math.max(120, width)), {
    ...layer,
    over: true,
  });

/** Return the scene of a picture with its map. @param {Drawn} drawn @param {number[]} [room] @returns {import('../draw/scene.js').Scene} */
export function pictureScene(drawn, room = FILE) {
  const size = drawnSize(drawn.view, room);
  return {
    width: Math.max(size[0], BAR.width),
    height: size[1] + barHeight(drawn.layer),
    draw: (surface) => {
      drawPicture(surface, drawn, size);
      if (drawn.layer) drawBar(surface, drawn.layer, size);
    },
  };
}
