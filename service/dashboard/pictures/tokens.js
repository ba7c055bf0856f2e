/**
 * Tokens of a picture: special tokens first, then the patches row by row.
 *
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {import('./geometry.js').View} View
 */

/** Return the geometry of a picture. @param {Reading} reading @returns {View} */
export const viewOf = (reading) => /** @type {View} */ (reading.view);

/** Return the number of patches. @param {View} view */
export const patchesOf = ({ grid: [rows, columns] }) => rows * columns;

/** Return the number of special tokens. @param {Reading} reading */
export const specialsOf = (reading) => reading.size - patchesOf(viewOf(reading));

/** Return the token of the state that looks: at first the first special token, or the patch in the middle. @param {{from: number|null}} state @param {Reading} reading */
export function fromOf({ from }, reading) {
  if (from !== null && from < reading.size) return from;
  const [rows, columns] = viewOf(reading).grid;
  return specialsOf(reading) > 0 ? 0 : Math.floor(rows / 2) * columns + Math.floor(columns / 2);
}

/** Return the token of the state that is looked at, or null. @param {{to: number|null}} state @param {Reading} reading */
export const toOf = ({ to }, reading) => (to !== null && to < reading.size ? to : null);

/** Return the name of a token. @param {Reading} reading @param {number} token */
export function nameOf(reading, token) {
  const patch = token - specialsOf(reading);
  return patch < 0 ? reading.tokens[token] : patchName(viewOf(reading), patch);
}

/** Return the name of a patch. @param {View} view @param {number} patch */
export const patchName = ({ grid: [, columns] }, patch) =>
  `row ${Math.floor(patch / columns)}, column ${patch % columns}`;

/** Return a token as a unit of the link finder. @param {Reading} reading @param {number} token @returns {import('../core/words.js').Unit} */
export function unitOf(reading, token) {
  const name = nameOf(reading, token);
  return { label: name, name, tokens: [token], segment: 0, special: token < specialsOf(reading) };
}

/** Return the row of a map, `[S]`. @param {Reading} reading @param {Float32Array} map `[S, S]` @param {number} token */
export const rowOf = ({ size }, map, token) => map.subarray(token * size, (token + 1) * size);

/** Names of statistics and behaviours that are others for pictures. */
const NAMES = {
  statistics: {
    previous: { name: 'Left share', says: 'weight on the patch to the left' },
    next: { name: 'Right share', says: 'weight on the patch to the right' },
  },
  labels: {
    previous: {
      name: 'patch to the left',
      says: 'At least half of its attention is on the patch to the left.',
    },
    next: {
      name: 'patch to the right',
      says: 'At least half of its attention is on the patch to the right.',
    },
  },
};

/** Name a reading's statistics and behaviours for pictures, which have no separators, and whose distances are of tokens in reading order. @param {Reading} reading */
export function namedForPicture(reading) {
  const { sep, distance, ...statistics } = reading.names.statistics;
  const first = specialsOf(reading) > 0 ? reading.tokens[0] : 'first patch';
  reading.names = {
    statistics: {
      ...statistics,
      ...NAMES.statistics,
      cls: { ...statistics.cls, name: `${first} share` },
    },
    labels: {
      ...reading.names.labels,
      ...NAMES.labels,
      cls: { ...reading.names.labels.cls, name: `${first} sink` },
    },
  };
  return reading;
}
