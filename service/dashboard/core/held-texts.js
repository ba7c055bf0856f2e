/** Texts that are too long for an address, kept in the tab under short names. */

export const MOST_IN_ADDRESS = 12_000;
const PREFIX = 'headscope-text-';
/** @type {Map<string, string>} */
const held = new Map();

/**
 * Return the name of a text, and keep the text until the tab is closed.
 *
 * @param {string} text
 */
export function hold(text) {
  const name = digestOf(text);
  held.set(name, text);
  try {
    sessionStorage.setItem(PREFIX + name, text);
  } catch {
    // it is kept until the page is left
  }
  return name;
}

/** Return a text by its name, or null if this tab does not have it. @param {string} name */
export function heldText(name) {
  try {
    return held.get(name) ?? sessionStorage.getItem(PREFIX + name);
  } catch {
    return held.get(name) ?? null;
  }
}

/** Return a number of 64 bits that a text gives, as 16 hexadecimal digits (FNV-1a). @param {string} text */
function digestOf(text) {
  let hash = 0xcbf29ce484222325n;
  for (const byte of new TextEncoder().encode(text))
    hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * 0x100000001b3n);
  return hash.toString(16).padStart(16, '0');
}
