/** Tokens or words of a text as buttons, among which the arrow keys move the focus. */

import { bdi, html } from '../core/html.js';
import { directionOf } from '../core/words.js';
import { arrowKeys } from './arrow-keys.js';

/**
 * @typedef {import('../core/words.js').Unit} Unit
 * @typedef {Object} Strip
 * @property {string} label of the group
 * @property {string} text that the units are from
 * @property {Unit[]} units
 * @property {Object<string, number>} roles place of the unit that has each role, or −1
 * @property {boolean} old whether another text is on its way
 * @property {(unit: Unit) => void} pick
 */

/** @param {Strip} strip */
export function tokenStrip({ label, text, units, roles, old, pick }) {
  const entered = Math.max(0, Object.values(roles)[0]);
  const word = (/** @type {Unit} */ unit, /** @type {number} */ place) => {
    const own = Object.keys(roles).filter((role) => roles[role] === place);
    return html`<button type="button" class=${['word', ...own, unit.special ? 'special' : ''].join(' ').trim()}
      .tabIndex=${place === entered ? 0 : -1} aria-pressed=${String(own.length > 0)}
      aria-label=${[unit.name, ...own].join(', ')} ?disabled=${old} @click=${() => pick(unit)}>${bdi(unit.label)}</button>`;
  };
  return html`<div class=${old ? 'strip stale' : 'strip'} role="group" aria-label=${label}
    dir=${directionOf(text)} @keydown=${arrowKeys()}>${units.map(word)}</div>`;
}
