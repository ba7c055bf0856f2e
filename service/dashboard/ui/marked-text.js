/** A text whose words are shaded by a number each, which the line below it shows; words can be chosen. */

import { html, nothing, painted, share } from '../core/html.js';
import { fixed } from '../core/numbers.js';
import { arrowKeys } from './arrow-keys.js';

/**
 * @typedef {import('../core/marked-words.js').MarkedText} MarkedText
 * @typedef {import('../core/marked-words.js').Marked} Marked
 * @typedef {Object} Options
 * @property {string} label of the group of words
 * @property {MarkedText} marked
 * @property {string} [rest] said while no word is pointed at
 * @property {number} [bold] length of the title, in code points
 * @property {string} [chosen] class of the words that are chosen
 * @property {(word: Marked) => boolean} [isChosen]
 * @property {(word: Marked) => void} [pick] chooses a word, where words can be chosen
 */

/** @param {Options} options */
export function markedText({
  label,
  marked,
  bold = 0,
  rest = '',
  chosen = 'gone',
  isChosen = () => false,
  pick,
}) {
  const { words, after, largest } = marked;
  const keys = arrowKeys();
  return html`<div class="marked-text" @pointerover=${point} @focusin=${point} @pointerleave=${leave} @focusout=${leave}>
    <p class="marked-words" role="group" aria-label=${label} dir="auto" @keydown=${keys}>${words.map(
      (
        word,
        i,
      ) => html`${isBody(words, i, bold) ? html`<br>` : word.before}<button type="button" class=${classOf(word, bold, isChosen(word) ? chosen : '')} aria-pressed=${pick ? String(isChosen(word)) : nothing}
        aria-label=${`${word.label}${said(word)}`} data-says=${`\u2068${word.label}\u2069${said(word)}`} .tabIndex=${i ? -1 : 0}
        .style=${share(largest && word.value !== null ? Math.abs(word.value) / largest : 0)}
        @click=${() => pick?.(word)}>${word.label}</button>`,
    )}${after.trim() ? html`<s class="lost">${after}</s>` : nothing}</p>
    <p class="readout" data-rest=${rest} ${painted(restOf, rest)}></p></div>`;
}

/** Whether a word is the first one after the title. @param {Marked[]} words @param {number} i @param {number} bold */
const isBody = (words, i, bold) => i > 0 && words[i - 1].start < bold && words[i].start >= bold;

/** @param {Marked} word @param {number} bold @param {string} chosen */
const classOf = ({ value, unknown, start }, bold, chosen) =>
  [
    'mark',
    chosen,
    value !== null && value < 0 ? 'less' : '',
    unknown ? 'unknown' : '',
    start < bold ? 'in-title' : '',
  ]
    .filter(Boolean)
    .join(' ');

/** Value of a word, as text. @param {Marked} word */
const said = ({ value, unknown }) =>
  `${value === null ? '' : `, ${value > 0 ? '+' : ''}${fixed(value, 4)}`}${unknown ? ', unknown to the model' : ''}`;

/** @param {HTMLElement} readout @param {string} rest */
const restOf = (readout, rest) => {
  readout.textContent = rest;
};

/** Show the value of the word under the pointer or with the focus. @param {Event} event */
function point(event) {
  const says = event.target instanceof HTMLElement ? event.target.dataset.says : undefined;
  if (says !== undefined) tell(event, says.replace(', ', '  '));
}

/** @param {Event} event */
const leave = (event) => tell(event, null);

/** @param {Event} event @param {string|null} says */
function tell(event, says) {
  const readout = /** @type {HTMLElement|null} */ (
    /** @type {HTMLElement} */ (event.currentTarget).querySelector('.readout')
  );
  if (!readout) return;
  readout.textContent = says ?? readout.dataset.rest ?? '';
  readout.classList.toggle('pointed', says !== null);
}
