/** Numbers as text. */

/** @param {number} value @param {number} digits @returns {string} never −0 */
export const fixed = (value, digits) => value.toFixed(digits).replace(/^-(?=[0.]+$)/, '');
