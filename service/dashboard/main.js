/** The page: state in the address, one reading of the text, the view that is asked for. */

import { AblationView } from './ablation-view.js';
import { Address } from './address.js';
import { ApiError, info } from './api.js';
import { theme } from './colours.js';
import { ComparisonView } from './comparison-view.js';
import {
  listenToComposer,
  listenToExports,
  listenToTabs,
  listenToTools,
  showComposer,
  showTabs,
} from './controls.js';
import { byId, element } from './dom.js';
import { Finder } from './finder.js';
import { HeadView } from './head-view.js';
import { HeadsView } from './heads-view.js';
import { Latest } from './latest.js';
import { Live } from './live.js';
import { open } from './reading.js';
import { RolloutView } from './rollout-view.js';
import { FIRST_TEXT } from './state.js';

let reading = null;
let shown = null;

const address = new Address(update);
/** @type {import('./controls.js').Page} */
const page = {
  go: (patch, options) => address.go(patch, options),
  settle: () => address.settle(),
  report,
  say,
  get state() {
    return address.state;
  },
};
const views = {
  heads: new HeadsView(page),
  head: new HeadView(page),
  rollout: new RolloutView(page),
  ablation: new AblationView(page),
  comparison: new ComparisonView(page),
};
const finder = new Finder(page, byId('finder'));
const live = new Live(byId('live'));
const opening = new Latest((error) => {
  report(error);
  if (reading) showView();
});

function update() {
  const { state } = page;
  showComposer(state);
  showTabs(state);
  live.show(state.live);
  byId('live-toggle').setAttribute('aria-expanded', String(state.live));
  const source = { texts: state.b === null ? [state.a] : [state.a, state.b], cut: state.cut, off: state.off };
  const key = JSON.stringify(source);
  if (reading?.key === key) {
    opening.stop();
    showReading();
    return;
  }
  document.body.classList.add('busy');
  opening.run(key, async (signal) => {
    const found = await open(source, signal);
    if (signal.aborted) return;
    reading = { key, value: found };
    showReading();
  });
}

function showReading() {
  document.body.classList.remove('busy');
  byId('problem').hidden = true;
  const { value } = reading;
  byId('facts').textContent =
    `${value.size} tokens${value.truncated ? ', cut' : ''} · ${value.milliseconds} ms`;
  showAblated(value);
  showView();
}

function showView() {
  const { value } = reading;
  const seen = withFirstLink(value);
  finder.show(value, seen);
  const view = views[page.state.view];
  if (shown !== view) {
    shown?.leave();
    byId('panel').replaceChildren(view.element);
    shown = view;
  }
  view.show(value, seen);
}

/** The first text asks its own question until another is asked: which head links “it” to “animal”? */
function withFirstLink({ texts, tokens }) {
  const { state } = page;
  if (state.from !== null || state.to !== null || texts.length > 1 || texts[0] !== FIRST_TEXT) return state;
  const [from, to] = ['it', 'animal'].map((token) => tokens.indexOf(token));
  return from >= 0 && to >= 0 ? { ...state, from, to } : state;
}

function showAblated(value) {
  const { off } = page.state;
  const notice = byId('ablated');
  notice.hidden = off.length === 0;
  if (notice.hidden) return;
  const names = off.map((name) => name.replace('.', '·'));
  const listed = names.length > 6 ? `${names.slice(0, 6).join(', ')} …` : names.join(', ');
  notice.replaceChildren(
    `${names.length === 1 ? 'One head is' : `${names.length} heads are`} switched off (${listed}); the embedding moved by `,
    element('b', {}, value.shift.toPrecision(3)),
    '. ',
    element(
      'button',
      { type: 'button', class: 'link', on: { click: () => page.go({ off: [] }) } },
      'Switch all on',
    ),
  );
}

/** @param {string} text for those who listen to the page */
function say(text) {
  byId('status').textContent = text;
}

/** @param {Error} error shown until something works again */
function report(error) {
  document.body.classList.remove('busy');
  const known = error instanceof ApiError;
  const title = known ? error.title : 'This page failed';
  const wait = error.retryAfterSeconds ? ` Try again in ${error.retryAfterSeconds} s.` : '';
  const action = (text, act) =>
    element('button', { type: 'button', class: 'quiet', on: { click: act } }, text);
  byId('problem').replaceChildren(
    element('b', {}, title),
    element('span', {}, ` ${error.message}${wait} `),
    ...(known && error.status === 422 && !page.state.cut && error.message.includes('truncate')
      ? [action('Cut the text', () => page.go({ cut: true }))]
      : []),
    action('Try again', update),
  );
  byId('problem').hidden = false;
}

function redraw() {
  shown?.redraw();
  live.redraw();
  byId('theme-toggle').textContent = theme() === 'dark' ? 'Light' : 'Dark';
}

async function describeService(signal) {
  const { model_id: model, layers, heads, engine, provider, precision } = await info(signal);
  byId('model').textContent =
    `${model} · ${layers} layers × ${heads} heads · ${engine}, ${provider}, ${precision}`;
}

listenToComposer(page);
listenToTabs(page);
listenToTools(page, redraw);
listenToExports(page, () => (reading && shown ? { reading: reading.value, view: shown } : null));
redraw();
update();
new Latest(report).run('info', describeService);
