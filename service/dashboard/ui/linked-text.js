/** A text in which some tokens are marked. */

import { html } from '../core/html.js';

/**
 * @param {string} text
 * @param {{span: number[], name: string}[]} marks spans in code points, with their classes
 * @param {number} [around] code points that are shown before the first mark and after the last one
 */
export function linkedText(text, marks, around = Infinity) {
  const points = Array.from(text);
  const sorted = [...marks].sort((one, other) => one.span[0] - other.span[0]);
  const first = Math.max(0, (sorted[0]?.span[0] ?? 0) - around);
  const last = Math.min(points.length, (sorted.at(-1)?.span[1] ?? 0) + around);
  let end = first;
  const parts = sorted.map(({ span: [start, stop], name }) => {
    const before = points.slice(end, start).join('');
    end = stop;
    return html`${before}<span class=${`linked ${name}`}>${points.slice(start, stop).join('')}</span>`;
  });
  return html`<bdi>${first > 0 ? '… ' : ''}${parts}${points.slice(end, last).join('')}${last < points.length ? ' …' : ''}</bdi>`;
}
