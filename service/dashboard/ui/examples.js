/** Example texts, each with another text to compare it with. */

import { html } from '../core/html.js';
import { FIRST_TEXT, INITIAL, OF_ONE_TEXT } from '../core/state.js';

const EXAMPLES = [
  { name: 'Coreference', a: FIRST_TEXT, c: INITIAL.c },
  { name: 'Negation', a: 'The film was good.', c: 'The film was not good.' },
  { name: 'Paraphrase', a: 'How do I reset my password?', c: 'I forgot my login, what now?' },
  { name: 'Question and answer', a: 'Where do cats sleep?', c: 'A cat sleeps anywhere.' },
  { name: 'Ambiguous word', a: 'She sat on the bank of the river.', c: 'She opened an account at the bank.' },
  { name: 'Other scripts', a: 'Кошка спит в коробке.', c: '猫は箱の中で眠っている。' },
];

/** @param {import('./store.js').Store} store */
export const examples = (store) =>
  html`<div class="examples" role="group" aria-label="Examples"><span>Examples</span>${EXAMPLES.map(
    ({ name, a, c }) => html`<button type="button" class="quiet"
      @click=${() => store.go({ a, b: null, c, part: 'all', ...OF_ONE_TEXT })}>${name}</button>`,
  )}</div>`;
