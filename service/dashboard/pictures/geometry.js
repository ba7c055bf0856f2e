/**
 * Places of patches in a picture.
 *
 * @typedef {{grid: number[], size: number[], crop: number[]}} View rows and columns; width and height of the
 *   picture; left, top, right and bottom of the part that the model sees, in pixels of the picture
 * @typedef {{x: number, y: number, width: number, height: number}} Box
 */

/** Shortest side of a picture that is drawn, in pixels. */
const SHORTEST = 40;

/** Return the part of the plane that is drawn: the picture, and a crop that is larger. @param {View} view @returns {Box} */
export function frameOf({ size: [width, height], crop: [left, top, right, bottom] }) {
  const [x, y] = [Math.min(0, left), Math.min(0, top)];
  return { x, y, width: Math.max(width, right) - x, height: Math.max(height, bottom) - y };
}

/**
 * Return the width and height of a drawing that has room, in pixels.
 *
 * @param {View} view
 * @param {number[]} room the most of either
 */
export function drawnSize(view, [widest, highest]) {
  const { width, height } = frameOf(view);
  const scale = Math.min(widest / width, highest / height);
  return [width * scale, height * scale].map((side) => Math.max(SHORTEST, Math.round(side)));
}

/**
 * Return the boxes of the crop and of a patch in a drawing.
 *
 * @param {View} view
 * @param {number[]} drawn width and height of the drawing
 */
export function placing(view, [width, height]) {
  const frame = frameOf(view);
  const [rows, columns] = view.grid;
  const [left, top, right, bottom] = view.crop;
  const [across, down] = [width / frame.width, height / frame.height];
  const crop = {
    x: (left - frame.x) * across,
    y: (top - frame.y) * down,
    width: (right - left) * across,
    height: (bottom - top) * down,
  };
  const [wide, high] = [crop.width / columns, crop.height / rows];
  return {
    crop,
    /** Box of the picture itself. */
    picture: {
      x: -frame.x * across,
      y: -frame.y * down,
      width: view.size[0] * across,
      height: view.size[1] * down,
    },
    /** @param {number} patch @returns {Box} */
    patch: (patch) => ({
      x: crop.x + (patch % columns) * wide,
      y: crop.y + Math.floor(patch / columns) * high,
      width: wide,
      height: high,
    }),
    /** Return the patch at a point, or −1. @param {number} x @param {number} y */
    at(x, y) {
      const [column, row] = [Math.floor((x - crop.x) / wide), Math.floor((y - crop.y) / high)];
      return column < 0 || row < 0 || column >= columns || row >= rows ? -1 : row * columns + column;
    },
  };
}

/**
 * Return the patch beside another one, which stays where there is none.
 *
 * @param {View} view
 * @param {number} patch −1 enters at the first patch
 * @param {string} key of the keyboard
 * @returns {number|null} null if the key moves nothing
 */
export function beside({ grid: [rows, columns] }, patch, key) {
  const [row, column] = [Math.floor(patch / columns), patch % columns];
  /** @type {Object<string, number[]>} */
  const places = {
    ArrowUp: [Math.max(0, row - 1), column],
    ArrowDown: [Math.min(rows - 1, row + 1), column],
    ArrowLeft: [row, Math.max(0, column - 1)],
    ArrowRight: [row, Math.min(columns - 1, column + 1)],
    Home: [row, 0],
    End: [row, columns - 1],
  };
  const place = places[key];
  if (!place) return null;
  return patch < 0 ? 0 : place[0] * columns + place[1];
}

/**
 * Interpolate a map between the centres of its patches, as bilinear resizing does.
 *
 * @param {Float32Array} values `[rows, columns]`
 * @param {number} rows
 * @param {number} columns
 * @param {number} factor
 * @returns {Float32Array} `[rows · factor, columns · factor]`
 */
export function interpolated(values, rows, columns, factor) {
  const result = new Float32Array(rows * columns * factor * factor);
  const [high, wide] = [rows * factor, columns * factor];
  const between = (/** @type {number} */ i, /** @type {number} */ count) => {
    const place = Math.max(0, Math.min(count - 1, (i + 0.5) / factor - 0.5));
    const low = Math.floor(place);
    return [low, Math.min(count - 1, low + 1), place - low];
  };
  for (let y = 0; y < high; y += 1) {
    const [top, bottom, down] = between(y, rows);
    for (let x = 0; x < wide; x += 1) {
      const [left, right, across] = between(x, columns);
      const upper = values[top * columns + left] * (1 - across) + values[top * columns + right] * across;
      const lower =
        values[bottom * columns + left] * (1 - across) + values[bottom * columns + right] * across;
      result[y * wide + x] = upper * (1 - down) + lower * down;
    }
  }
  return result;
}
