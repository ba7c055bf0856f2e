/** Small controls that several views have. */

import { element } from './dom.js';

const PARTS = [
  ['all', 'All'],
  ['aa', 'A → A'],
  ['ab', 'A → B'],
  ['ba', 'B → A'],
  ['bb', 'B → B'],
];

/** How weak a link is still drawn. */
export function weakestLink(page) {
  const shown = element('output');
  const range = element('input', {
    type: 'range',
    min: '0',
    max: '0.5',
    step: '0.01',
    on: { input: () => page.go({ min: Number(range.value) }, { replace: true }) },
  });
  return {
    element: element('label', { class: 'choice' }, element('span', {}, 'Links from'), range, shown),
    show: ({ min }) => {
      range.value = String(min);
      shown.textContent = min.toFixed(2);
    },
  };
}

/** Which quadrant of a pair is seen. */
export function partSwitch(page) {
  const buttons = PARTS.map(([part, name]) =>
    element(
      'button',
      { type: 'button', data: { part }, on: { click: () => page.go({ part, zoom: [1, 0, 0] }) } },
      name,
    ),
  );
  const group = element(
    'div',
    { class: 'segments', role: 'group', 'aria-label': 'Quadrant of the pair' },
    ...buttons,
  );
  return {
    element: group,
    show: ({ part }, reading) => {
      group.hidden = reading.texts.length === 1;
      for (const button of buttons) button.setAttribute('aria-pressed', String(button.dataset.part === part));
    },
  };
}

/** The switch between colours in proportion to weights and relative to even attention. */
export function scaleSwitch(page) {
  const box = element('input', {
    type: 'checkbox',
    on: { change: () => page.go({ linear: box.checked }, { replace: true }) },
  });
  return {
    element: element(
      'label',
      {
        class: 'switch',
        title: 'Off: even attention is a quarter of the way to the strongest colour, however long the text',
      },
      box,
      ' Linear colours',
    ),
    show: ({ linear }) => {
      box.checked = linear;
    },
  };
}
