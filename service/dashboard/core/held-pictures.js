/**
 * Data URLs of the page's pictures by their names. They are in memory alone: no address and no storage has
 * them.
 *
 * @type {Map<string, string>}
 */
const held = new Map();
/** Sign at the end of a name, which no field for text can have. */
const MARK = '\u2063';
let count = 0;

/** Keep a picture until it is released, and return its name. @param {string} url its data URL */
export function holdPicture(url) {
  count += 1;
  const name = `picture ${count}${MARK}`;
  held.set(name, url);
  return name;
}

/** @param {string} name */
export const releasePicture = (name) => held.delete(name);

/**
 * Return an element of a request's `inputs`: of an animated picture the first frame, which browsers draw.
 *
 * @param {string} text a text, or the name of a picture
 */
export const inputOf = (text) => (held.has(text) ? { image: held.get(text), first_frame: true } : text);

/** Whether a text is the name of a picture. @param {string} text */
export const isPicture = (text) => held.has(text);

/**
 * Return the geometry of the first picture of a reply, or null of a text: rows and columns of patches; width and
 * height; left, top, right and bottom of the part that the model sees, in pixels.
 *
 * @param {{grid?: number[][], size?: number[][], crop?: number[][]}} lists
 */
export const viewIn = ({ grid, size, crop }) =>
  grid && size && crop ? { grid: grid[0], size: size[0], crop: crop[0] } : null;
