/** Conversion of float16 bits to numbers, with a table of 65,536 entries. */

let table = null;

function makeTable() {
  const values = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits += 1) {
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    let value;
    if (exponent === 0) value = fraction * 2 ** -24;
    else if (exponent === 31) value = fraction ? NaN : Infinity;
    else value = (1 + fraction / 1024) * 2 ** (exponent - 15);
    values[bits] = bits & 0x8000 ? -value : value;
  }
  return values;
}

/**
 * @param {Uint16Array} bits
 * @returns {Float32Array} of the same length
 */
export function decode(bits) {
  table ??= makeTable();
  const values = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i += 1) values[i] = table[bits[i]];
  return values;
}
