/** What is drawn over a heatmap: names, the border between two texts, what is pointed at. */

import { fit } from './surface.js';

const NAMED_CELL = 11;

/**
 * @param {import('./surface.js').Surface} surface
 * @param {{left: number, top: number, cell: number, wide: number, high: number, x: number, y: number}} view
 *   pixels of the corner and of a cell; in cells: how many are seen, and the first
 * @param {{map: import('./maps.js').NamedMap, focus: {row: number, column: number}, held: number[], colours: Object}} marks
 */
export function decorate(surface, view, marks) {
  drawBoundaries(surface, view, marks);
  drawNames(surface, view, marks);
  drawFocus(surface, view, marks);
}

function drawBoundaries(surface, { left, top, cell, wide, high, x, y }, { map, colours }) {
  const { rows, columns } = map;
  const border = (units) => units.findIndex((unit, i) => i > 0 && unit.segment !== units[i - 1].segment);
  const [down, across] = [border(rows) - y, border(columns) - x];
  if (across > 0 && across < wide)
    surface.line(left + across * cell, top, left + across * cell, top + high * cell, colours.mark);
  if (down > 0 && down < high)
    surface.line(left, top + down * cell, left + wide * cell, top + down * cell, colours.mark);
}

function drawNames(surface, { left, top, cell, wide, high, x, y }, { map, focus, held, colours }) {
  const { rows, columns } = map;
  const all = cell >= NAMED_CELL;
  const size = Math.min(12, Math.max(9, cell * 0.8));
  for (let i = Math.floor(y); i < y + high && i < rows.length; i += 1) {
    const bold = i === focus.row || held.includes(i);
    const at = top + (i + 0.5 - y) * cell;
    if ((all || bold) && at >= top && at <= top + high * cell)
      surface.text(fit(rows[i].label, left - 10, size), left - 6, at, {
        size: bold ? 12 : size,
        bold,
        align: 'right',
        colour: bold ? colours.mark : colours.ink,
      });
  }
  for (let i = Math.floor(x); i < x + wide && i < columns.length; i += 1) {
    const bold = i === focus.column;
    const at = left + (i + 0.5 - x) * cell;
    if ((all || bold) && at >= left && at <= left + wide * cell)
      surface.text(fit(columns[i].label, top - 8, size), at, top - 6, {
        size: bold ? 12 : size,
        bold,
        turn: -90,
        colour: bold ? colours.mark : colours.ink,
      });
  }
}

function drawFocus(surface, { left, top, cell, wide, high, x, y }, { focus, colours }) {
  const { row, column } = focus;
  const [atX, atY] = [left + (column - x) * cell, top + (row - y) * cell];
  if (row >= 0 && row + 1 > y && row < y + high)
    surface.rect(left, Math.max(top, atY), wide * cell, cell, colours.mark, 0.14);
  if (column >= 0 && column + 1 > x && column < x + wide)
    surface.rect(Math.max(left, atX), top, cell, high * cell, colours.mark, 0.14);
  if (row >= y && column >= x && row >= 0 && column >= 0)
    surface.frame(atX, atY, Math.max(3, cell), Math.max(3, cell), colours.mark);
}
