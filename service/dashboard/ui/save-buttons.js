/** Buttons that copy the page's link and save the view as a file. */

import { html } from '../core/html.js';
import { toPng, toSvg } from '../draw/scene.js';

const MOST_TITLE = 160;

/** @typedef {import('./store.js').Store} Store */

/** @param {Store} store */
export function saveButtons(store) {
  const copy = async () => {
    store.address.write();
    store.announce(
      (await copied(location.href)) ? 'Link copied.' : 'Not copied: the address bar has the link.',
    );
  };
  const button = (
    /** @type {string} */ kind,
  ) => html`<button type="button" class="quiet" id=${`export-${kind.toLowerCase()}`}
    ?disabled=${!store.savable} @click=${() => save(store, kind)}>${kind}</button>`;
  return html`<div class="exports" role="group" aria-label="Export what is seen">
    <span class="says" aria-hidden="true">${store.announced}</span><button type="button" class="quiet" id="copy-link" @click=${copy}>Copy link</button>${['PNG', 'SVG', 'JSON', 'HTML'].map(button)}</div>`;
}

/** Copy a text to the clipboard, and return whether it is there. @param {string} text */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedWithoutApi(text);
  }
}

/** Copy a text where browsers have no `navigator.clipboard`, as on a page over plain HTTP. @param {string} text */
function copiedWithoutApi(text) {
  const focused = document.activeElement;
  const field = document.createElement('textarea');
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand('copy');
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return done;
}

/** @param {Store} store @param {string} kind */
async function save(store, kind) {
  const { savable } = store;
  if (!savable) return;
  const { name, scene, json, texts: own } = savable.make();
  const { tokens, off, model } = savable.reading;
  const texts = own ?? savable.reading.texts;
  const { words, view } = store.state;
  const title = [name, model, texts.join(' / ')].filter(Boolean).join(' · ');
  const heading = title.length > MOST_TITLE ? `${title.slice(0, MOST_TITLE - 1)}…` : title;
  const content = { model, texts, ...(own ? {} : { tokens }), off, words, view, ...json };
  const made = {
    JSON: () => toJson(content),
    SVG: () =>
      new Blob([new XMLSerializer().serializeToString(toSvg(scene, heading))], { type: 'image/svg+xml' }),
    PNG: () => toPng(scene, heading),
    HTML: () => toHtml(name, content, toSvg(scene, heading)),
  };
  const file = await made[/** @type {keyof typeof made} */ (kind)]();
  download(file, `headscope ${name}.${kind.toLowerCase()}`.replaceAll(' ', '-'));
  store.announce(`Saved as ${kind}.`);
}

/** @param {Object} content */
const toJson = (content) => new Blob([`${JSON.stringify(content, null, 1)}\n`], { type: 'application/json' });

/**
 * Return a page for a colleague, which shows the picture and its numbers offline and has no script.
 *
 * @param {string} name of the view
 * @param {{model: string, texts: string[]}} content
 * @param {Element} svg
 */
function toHtml(name, content, svg) {
  const page = document.implementation.createHTMLDocument(`${name} · Headscope`);
  const meta = page.createElement('meta');
  meta.setAttribute('charset', 'utf-8');
  page.head.prepend(meta);
  const add = (
    /** @type {string} */ tag,
    /** @type {string} */ text,
    parent = /** @type {Element} */ (page.body),
  ) => {
    const node = page.createElement(tag);
    node.textContent = text;
    parent.append(node);
    return node;
  };
  add('h1', name);
  for (const text of content.texts) add('blockquote', text);
  page.body.append(page.importNode(svg, true));
  const numbers = add('details', '');
  add('summary', 'Numbers', numbers);
  add('pre', JSON.stringify(content, null, 1), numbers);
  add('p', `${content.model}, by Headscope: `).append(
    Object.assign(page.createElement('a'), { href: location.href, textContent: location.href }),
  );
  return new Blob([`<!doctype html>\n${page.documentElement.outerHTML}\n`], { type: 'text/html' });
}

/** Let the browser save a file. @param {Blob} blob @param {string} name */
export function download(blob, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
