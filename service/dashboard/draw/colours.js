/** Colours of weights and of the theme. */

import { contextOf } from './canvas.js';

const SEQUENTIAL = {
  light: [
    [255, 255, 255],
    [205, 228, 229],
    [118, 181, 188],
    [36, 114, 130],
    [9, 52, 70],
    [4, 22, 36],
  ],
  dark: [
    [24, 28, 36],
    [24, 60, 74],
    [30, 110, 122],
    [88, 172, 164],
    [202, 220, 168],
    [255, 246, 214],
  ],
};
/** From the strongest negative to the strongest positive value; brown is negative everywhere on the page. */
const DIVERGING = {
  light: [
    [158, 66, 20],
    [233, 162, 110],
    [255, 255, 255],
    [118, 181, 188],
    [14, 84, 102],
  ],
  dark: [
    [255, 182, 112],
    [150, 80, 36],
    [24, 28, 36],
    [40, 112, 122],
    [140, 222, 214],
  ],
};
/** From what is dimmed to what is shown of a picture. */
const REVEALED = [
  [0, 0, 0],
  [255, 255, 255],
];
const STEPS = 256;
const THEMES = {
  light: {
    ink: '#1b2430',
    soft: '#5c6875',
    faint: '#d8dde0',
    ground: '#ffffff',
    line: '#12677a',
    mark: '#b4541a',
    tones: ['#b4541a', '#6b3fd4', '#1b7f3b', '#b0186e', '#6b5d00'],
  },
  dark: {
    ink: '#e8ebee',
    soft: '#9aa5b1',
    faint: '#343c48',
    ground: '#181c24',
    line: '#6fc3c0',
    mark: '#f0b26b',
    tones: ['#f0b26b', '#b79cff', '#7fd28a', '#ff8cc6', '#d9cf5b'],
  },
};

/** @returns {'light'|'dark'} what is seen now */
export function theme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen === 'light' || chosen === 'dark') return chosen;
  return matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
}

/**
 * @typedef {{ink: string, soft: string, faint: string, ground: string, line: string, mark: string,
 *   tones: string[]}} Theme `tones` tell overlaid heads apart
 */

/** @returns {Theme} */
export const themeColours = () => THEMES[theme()];

/** @type {Map<number[][], Uint32Array>} */
const ramps = new Map();

/** @param {number[][]} stops @returns {Uint32Array} pixels from the weakest colour to the strongest */
function ramp(stops) {
  let table = ramps.get(stops);
  if (!table) {
    table = new Uint32Array(STEPS);
    for (let i = 0; i < STEPS; i += 1) {
      const place = (i / (STEPS - 1)) * (stops.length - 1);
      const low = Math.min(Math.floor(place), stops.length - 2);
      const [r, g, b] = stops[low].map((value, c) =>
        Math.round(value + (stops[low + 1][c] - value) * (place - low)),
      );
      table[i] = (255 << 24) | (b << 16) | (g << 8) | r;
    }
    ramps.set(stops, table);
  }
  return table;
}

/**
 * Return the pixels that lie over a picture: black that is lifted where weights are strong, or the colour of the
 * sign where there is a signed value, so that what counts is what is seen.
 *
 * @param {boolean} signed
 */
function veils(signed) {
  const [below, , , , above] = DIVERGING[theme()];
  return Uint32Array.from({ length: STEPS }, (_, i) => {
    const place = i / (STEPS - 1);
    if (!signed) return ((255 * (1 - place)) << 24) >>> 0;
    const [r, g, b] = place < 0.5 ? below : above;
    return ((Math.round(255 * Math.abs(2 * place - 1)) << 24) | (b << 16) | (g << 8) | r) >>> 0;
  });
}

/** @param {boolean} signed @param {boolean} [over] whether it is for a map over a picture */
const colourTable = (signed, over = false) =>
  ramp(over && !signed ? REVEALED : (signed ? DIVERGING : SEQUENTIAL)[theme()]);

/** @param {boolean} signed @param {boolean} [over] @returns {HTMLCanvasElement} all colours in a row, weakest first */
export function rampImage(signed, over = false) {
  const canvas = document.createElement('canvas');
  canvas.width = STEPS;
  canvas.height = 1;
  const image = new ImageData(STEPS, 1);
  new Uint32Array(image.data.buffer).set(colourTable(signed, over));
  contextOf(canvas).putImageData(image, 0, 0);
  return canvas;
}

/**
 * Return the exponent from weights to shades. Even attention is a quarter of the way to the darkest shade for
 * any length, so that the map of a long text is not blank.
 *
 * @param {number} keys how many tokens a row's weight is spread over
 */
export const exponentOf = (keys) => (keys > 4 ? Math.log(4) / Math.log(keys) : 1);

/**
 * Paint a map with one pixel a cell.
 *
 * @param {HTMLCanvasElement} canvas is given the map's size
 * @param {Float32Array} values `[height, width]`: 0 … 1, or −1 … 1 when `signed`
 * @param {number} width
 * @param {number} height
 * @param {{linear: boolean, signed?: boolean, keys?: number, full?: number, over?: boolean}} options `keys` as in
 *   `exponentOf`; `full` is the weight of the strongest colour; `over`: as `veils` for a picture
 */
export function paint(
  canvas,
  values,
  width,
  height,
  { linear, signed = false, keys = width, full = 1, over = false },
) {
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const exponent = linear ? 1 : exponentOf(keys);
  const table = over ? veils(signed) : colourTable(signed);
  for (let i = 0; i < pixels.length; i += 1) {
    const value = Math.max(-1, Math.min(1, values[i] / full));
    const strength = Math.abs(value) ** exponent;
    const place = signed ? 0.5 + 0.5 * Math.sign(value) * strength : strength;
    pixels[i] = table[Math.round(place * (STEPS - 1))];
  }
  contextOf(canvas).putImageData(image, 0, 0);
}
