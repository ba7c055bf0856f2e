/**
 * What of the page is always there: the texts and options, the tabs, the buttons.
 *
 * @typedef {Object} Page what every part of the page may ask for
 * @property {import('./state.js').State} state the newest, also while a text is on its way
 * @property {(patch: Partial<import('./state.js').State>, options?: {replace?: boolean}) => void} go
 * @property {() => void} settle write the address now
 * @property {(error: Error) => void} report
 * @property {(text: string) => void} say for those who listen to the page
 */

import { theme } from './colours.js';
import { byId, element } from './dom.js';
import { download, toJson, toPng, toSvg } from './export.js';
import { VIEWS } from './state.js';

const TYPING_MS = 350;
const TITLES = {
  heads: 'All heads',
  head: 'One head',
  rollout: 'Rollout',
  ablation: 'Ablation',
  comparison: 'Comparison',
};
const OF_ONE_TEXT = { from: null, to: null, pins: [], zoom: [1, 0, 0] };

let typing = 0;

/** Texts and options. @param {Page} page */
export function listenToComposer(page) {
  byId('composer').addEventListener('submit', (event) => event.preventDefault());
  const typed = () => {
    typing = 0;
    page.go(
      {
        a: byId('text-a').value,
        ...(page.state.b === null ? {} : { b: byId('text-b').value }),
        ...OF_ONE_TEXT,
      },
      { replace: true },
    );
  };
  for (const id of ['text-a', 'text-b']) {
    byId(id).addEventListener('input', () => {
      clearTimeout(typing);
      typing = setTimeout(typed, TYPING_MS);
    });
    byId(id).addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      clearTimeout(typing);
      typed();
    });
  }
  byId('pair').addEventListener('change', (event) => {
    clearTimeout(typing);
    typing = 0;
    page.go({
      a: byId('text-a').value,
      b: event.target.checked ? byId('text-b').value : null,
      part: 'all',
      ...OF_ONE_TEXT,
    });
  });
  for (const name of ['words', 'bare', 'cut'])
    byId(name).addEventListener('change', (event) =>
      page.go({ [name]: event.target.checked, zoom: [1, 0, 0] }),
    );
}

/** One tab a view. @param {Page} page */
export function listenToTabs(page) {
  const tabs = byId('tabs');
  tabs.append(
    ...VIEWS.map((view) =>
      element(
        'button',
        {
          type: 'button',
          id: `tab-${view}`,
          role: 'tab',
          data: { view },
          'aria-controls': 'panel',
          on: { click: () => page.go({ view }) },
        },
        TITLES[view],
      ),
    ),
  );
  tabs.addEventListener('keydown', (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = VIEWS[(VIEWS.indexOf(page.state.view) + step + VIEWS.length) % VIEWS.length];
    page.go({ view: next });
    byId(`tab-${next}`).focus();
  });
}

/** The buttons of the page itself. @param {Page} page @param {() => void} redraw */
export function listenToTools(page, redraw) {
  byId('live-toggle').addEventListener('click', () => page.go({ live: !page.state.live }));
  byId('skip').addEventListener('click', (event) => {
    event.preventDefault();
    byId('panel').focus();
  });
  byId('theme-toggle').addEventListener('click', () => {
    const other = theme() === 'dark' ? 'light' : 'dark';
    document.documentElement.dataset.theme = other;
    try {
      localStorage.setItem('headscope-theme', other);
    } catch {
      // it holds until the page is left
    }
    redraw();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
}

/**
 * What is seen, as files.
 *
 * @param {Page} page
 * @param {() => {reading: import('./reading.js').Reading, view: Object}|null} seen
 */
export function listenToExports(page, seen) {
  byId('copy-link').addEventListener('click', async () => {
    try {
      page.settle();
      await navigator.clipboard.writeText(location.href);
      page.say('Link copied.');
    } catch {
      page.say('The address bar holds the link.');
    }
  });
  const save = (kind, make) =>
    byId(`export-${kind}`).addEventListener('click', async () => {
      const found = seen();
      if (!found) return;
      const { texts, tokens, off } = found.reading;
      const { name, scene, json } = found.view.exported();
      if (kind !== 'json' && !scene) return;
      const { words, view } = page.state;
      const content = { texts, tokens, off, words, view, ...json };
      const title = `${name} · ${texts.join(' / ')}`;
      download(
        await make(scene, title.length > 120 ? `${title.slice(0, 119)}…` : title, content),
        `headscope ${name}.${kind}`.replaceAll(' ', '-'),
      );
      page.say(`Saved as ${kind.toUpperCase()}.`);
    });
  save('png', toPng);
  save('svg', toSvg);
  save('json', (_, __, content) => toJson(content));
}

/** @param {import('./state.js').State} state */
export function showComposer(state) {
  for (const [id, text] of [
    ['text-a', state.a],
    ['text-b', state.b ?? ''],
  ]) {
    const area = byId(id);
    if (document.activeElement !== area || typing === 0) if (area.value !== text) area.value = text;
  }
  byId('field-b').hidden = state.b === null;
  byId('label-a').textContent = state.b === null ? 'Text' : 'First text of the pair';
  byId('pair').checked = state.b !== null;
  for (const name of ['words', 'bare', 'cut']) byId(name).checked = state[name];
  document.title =
    state.view === 'heads'
      ? 'Headscope'
      : `${TITLES[state.view]}${state.view === 'head' ? ` ${state.layer}·${state.head}` : ''} · Headscope`;
}

/** @param {import('./state.js').State} state */
export function showTabs(state) {
  for (const tab of byId('tabs').children) {
    const chosen = tab.dataset.view === state.view;
    tab.setAttribute('aria-selected', String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) byId('panel').setAttribute('aria-labelledby', tab.id);
  }
}
