/**
 * A map as lines from queries on the left to keys on the right.
 *
 * @typedef {import('../core/maps.js').NamedMap} NamedMap
 * @typedef {import('./heatmap.js').Cell} Cell
 * @typedef {import('./canvas-and-svg.js').Surface} Surface
 * @typedef {Object} LinesOptions
 * @property {string} name of the map
 * @property {number[]} pins tokens whose links are held
 * @property {number} min the weakest link that is drawn
 * @property {number} heaviest the weight that is drawn strongest
 * @property {number} unit 1 of weights, the largest of norms
 * @property {Overlay} overlay
 * @typedef {{name: string, map: NamedMap, tone: number}} OverlaidMap `tone` is its place among the theme's
 * @typedef {Object} Overlay maps of the same rows and columns whose lines are drawn too
 * @property {number} tone of the map itself, −1 for the colour of lines
 * @property {OverlaidMap[]} others
 * @typedef {Object} LinesView
 * @property {Surface} surface
 * @property {number} width
 * @property {number} height
 * @property {number} top pixels scrolled
 * @property {number} row pixels of a row
 * @property {number} gutter pixels of the names on either side
 * @property {import('./colours.js').Theme} colours
 */

import { placeOf } from '../core/maps.js';
import { largest } from '../core/matrix.js';
import { memo } from '../core/memo.js';
import { fit } from './canvas-and-svg.js';
import { themeColours } from './colours.js';
import { NOTHING } from './heatmap.js';

const ROW = { most: 26, least: 13 };
export const VIEWPORT = 620;
const FILE_WIDTH = 480;
const FAINTEST = 0.004;
/** The most links of a map that are drawn, as more hide each other. */
const MOST_LINKS = 800;
const APART = 2;
const LEGEND = { row: 20, gap: 14, sample: 26 };
const EDGE = { labels: 4, least: 0.02, pixels: 18 };

/** @param {NamedMap} map */
const countOf = (map) => Math.max(map.rows.length, map.columns.length);
/** @param {NamedMap} map @returns {number} pixels */
export const rowHeight = (map) => Math.max(ROW.least, Math.min(ROW.most, VIEWPORT / countOf(map)));
/** @param {NamedMap} map @returns {number} pixels of all rows */
export const heightOf = (map) => Math.ceil(countOf(map) * rowHeight(map));

/**
 * @param {NamedMap} map
 * @param {LinesOptions} options
 * @returns {import('./scene.js').Scene}
 */
export function linesScene(map, options) {
  const frame = { width: FILE_WIDTH, height: heightOf(map), top: 0 };
  const { tone, others } = options.overlay;
  const named = others.length ? [{ name: options.name, tone }, ...others] : [];
  const draw = (/** @type {Surface} */ surface) => {
    drawLines(surface, map, options, frame, NOTHING);
    named.forEach((one, i) => {
      const y = frame.height + LEGEND.gap + i * LEGEND.row;
      surface.line(0, y, LEGEND.sample, y, toneColour(one.tone), 3);
      surface.text(one.name, LEGEND.sample + 8, y, { colour: themeColours().ink });
    });
  };
  return {
    width: frame.width,
    height: frame.height + (named.length && LEGEND.gap + named.length * LEGEND.row),
    draw,
  };
}

/** @param {number} tone */
export function toneColour(tone) {
  const { line, tones } = themeColours();
  return tones[tone] ?? line;
}

/**
 * @param {Surface} surface
 * @param {NamedMap} map
 * @param {LinesOptions} options
 * @param {{width: number, height: number, top: number}} frame
 * @param {Cell} pointed
 */
export function drawLines(surface, map, options, frame, pointed) {
  const gutter = Math.max(70, Math.min(150, frame.width * 0.3));
  const view = { ...frame, surface, gutter, row: rowHeight(map), colours: themeColours() };
  const held = options.pins.map((token) => placeOf(map.rows, token)).filter((place) => place >= 0);
  const isolated = pointed.row >= 0 ? [...new Set([...held, pointed.row])] : held;
  const { tone, others } = options.overlay;
  const marked = others.length === 0 && (isolated.length > 0 || pointed.column >= 0);
  const own = { map, colour: marked ? view.colours.mark : toneColour(tone) };
  const drawn = [...others.map((one) => ({ map: one.map, colour: toneColour(one.tone) })), own];
  drawn.forEach((one, i) => {
    drawLinks(
      view,
      { ...one, lift: (i - (drawn.length - 1) / 2) * APART },
      options,
      isolated,
      pointed.column,
    );
  });
  const shares = drawn.map((one) => ({
    colour: others.length ? one.colour : view.colours.mark,
    values: sharesOf(one.map, isolated, options.unit),
  }));
  drawNames(view, map.rows, isolated, true, []);
  drawNames(view, map.columns, [pointed.column], false, shares);
  const leading = pointed.row >= 0 ? pointed.row : held.at(-1);
  if (leading !== undefined && pointed.column < 0) drawEdges(view, map, leading);
}

/**
 * Return the attention of the emphasised rows to each column, on average.
 *
 * @param {NamedMap} map
 * @param {number[]} isolated
 * @param {number} unit
 */
function sharesOf({ weights, columns }, isolated, unit) {
  const width = columns.length;
  const shares = new Float32Array(width);
  for (const place of isolated) {
    for (let i = 0; i < width; i += 1) shares[i] += weights[place * width + i] / isolated.length / unit;
  }
  return shares;
}

/**
 * Return the weakest link that is drawn while no row is chosen, how many are, and how many are as strong as asked.
 */
export const drawnLinks = memo(
  (/** @type {NamedMap} */ { weights }, /** @type {number} */ min, /** @type {number} */ unit) => {
    const least = Math.max(FAINTEST * unit, min);
    const strong = weights.filter((weight) => weight >= least).sort();
    const all = strong.length;
    return all > MOST_LINKS
      ? { least: strong[all - MOST_LINKS], drawn: MOST_LINKS, all }
      : { least, drawn: all, all };
  },
  8,
);

/**
 * @param {LinesView} view
 * @param {{map: NamedMap, colour: string, lift: number}} drawn `lift`, pixels, keeps maps from hiding each other
 * @param {LinesOptions} options
 * @param {number[]} isolated rows; all when none is
 * @param {number} only the column that is pointed at
 */
function drawLinks(
  { surface, width, height, top, row, gutter },
  { map, colour, lift },
  { min, heaviest, unit },
  isolated,
  only,
) {
  const { rows, columns, weights } = map;
  const inView = (/** @type {number} */ place) => (place + 1) * row >= top && place * row <= top + height;
  const isWhole = isolated.length === 0 && only < 0;
  const least = isWhole ? drawnLinks(map, min, unit).least : Math.max(FAINTEST * unit, min);
  for (const place of isolated.length && only < 0 ? isolated : rows.keys()) {
    for (let other = 0; other < columns.length; other += 1) {
      const weight = weights[place * columns.length + other];
      if (weight < least || (only >= 0 && other !== only) || !(inView(place) || inView(other))) continue;
      const [from, to] = [place, other].map((end) => (end + 0.5) * row - top + lift);
      const strength = weight / heaviest;
      surface.curve(gutter + 8, from, width - gutter - 8, to, {
        colour,
        alpha: Math.min(1, 0.06 + strength),
        width: 0.6 + 2.6 * strength,
      });
    }
  }
}

/**
 * @param {LinesView} view
 * @param {import('../core/words.js').Unit[]} units
 * @param {number[]} strong
 * @param {boolean} isLeft
 * @param {{values: Float32Array, colour: string}[]} shares shown behind the names, side by side
 */
function drawNames({ surface, width, height, top, row, gutter, colours }, units, strong, isLeft, shares) {
  const last = Math.min(units.length - 1, Math.ceil((top + height) / row));
  const size = row < 16 ? 12 : 13;
  const x = isLeft ? 0 : width - gutter;
  for (let i = Math.max(0, Math.floor(top / row)); i <= last; i += 1) {
    const y = (i + 0.5) * row - top;
    const bold = strong.includes(i);
    shares.forEach(({ values, colour }, place) => {
      const part = gutter / shares.length;
      if (values[i] > FAINTEST)
        surface.rect(x + place * part, y - row / 2 + 1, part, row - 2, colour, Math.min(0.6, values[i]));
    });
    if (bold) surface.rect(x, y - row / 2 + 1, gutter, row - 2, colours.line, 0.16);
    surface.text(fit(units[i].label, gutter - 12, size), isLeft ? gutter : width - gutter + 6, y, {
      size,
      bold,
      align: isLeft ? 'right' : 'left',
      colour: units[i].special ? colours.soft : colours.ink,
    });
    if (i > 0 && units[i].segment !== units[i - 1].segment)
      surface.line(x, y - row / 2, x + gutter, y - row / 2, colours.soft);
  }
}

/**
 * Name the strongest links that leave the visible part, at the edge where they leave it.
 *
 * @param {LinesView} view
 * @param {NamedMap} map
 * @param {number} leading the row they lead from
 */
function drawEdges({ surface, width, height, top, row, gutter, colours }, { columns, weights }, leading) {
  const start = leading * columns.length;
  const seen = weights.subarray(start, start + columns.length);
  const strongest = largest(seen, 8).filter((i) => seen[i] > EDGE.least);
  for (const above of [true, false]) {
    const out = strongest.filter((i) => (above ? (i + 0.5) * row < top : (i + 0.5) * row > top + height));
    out.slice(0, EDGE.labels).forEach((i, place) => {
      const y = above ? (place + 0.5) * EDGE.pixels : height - (place + 0.5) * EDGE.pixels;
      surface.rect(width - gutter - 2, y - 9, gutter + 2, 18, colours.ground);
      const name = `${above ? '↑' : '↓'} ${fit(columns[i].name, gutter - 60)} ${seen[i].toFixed(2)}`;
      surface.text(name, width - gutter + 6, y, { size: 12, bold: true, colour: colours.mark });
    });
  }
}
