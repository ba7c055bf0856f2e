/**
 * Surfaces to draw on with the same methods: a canvas (screen and PNG), and an SVG document.
 *
 * @typedef {CanvasSurface|SvgSurface} Surface
 * @typedef {{colour: string, alpha: number, width: number}} Stroke of a level S-curve
 * @typedef {{size?: number, colour: string, align?: 'left'|'center'|'right', bold?: boolean, turn?: number}} TextStyle
 *   pixels, degrees
 */

export const FONT = 'Inter, ui-sans-serif, system-ui, sans-serif';
const NOT_XML = /[^\t\n\r\u0020-\uD7FF\uE000-\uFFFD\u{10000}-\u{10FFFF}]/gu;
const SVG = 'http://www.w3.org/2000/svg';

/** Draws on a 2D context in CSS pixels. */
export class CanvasSurface {
  /** @param {CanvasRenderingContext2D} context */
  constructor(context) {
    this.context = context;
  }

  /** Pixels of the canvas in a pixel of CSS. */
  get scale() {
    return this.context.getTransform().a;
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {string} colour @param {number} [alpha] */
  rect(x, y, width, height, colour, alpha = 1) {
    this.context.globalAlpha = alpha;
    this.context.fillStyle = colour;
    this.context.fillRect(x, y, width, height);
    this.context.globalAlpha = 1;
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {string} colour */
  frame(x, y, width, height, colour) {
    this.context.strokeStyle = colour;
    this.context.lineWidth = 1;
    this.context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  }

  /** @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2 @param {string} colour @param {number} [width] */
  line(x1, y1, x2, y2, colour, width = 1) {
    this.#stroke(colour, 1, width, (path) => {
      path.moveTo(x1, y1);
      path.lineTo(x2, y2);
    });
  }

  /** @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2 @param {Stroke} stroke */
  curve(x1, y1, x2, y2, { colour, alpha, width }) {
    const middle = (x1 + x2) / 2;
    this.#stroke(colour, alpha, width, (path) => {
      path.moveTo(x1, y1);
      path.bezierCurveTo(middle, y1, middle, y2, x2, y2);
    });
  }

  /** @param {string} colour @param {number} alpha @param {number} width @param {(path: CanvasRenderingContext2D) => void} trace */
  #stroke(colour, alpha, width, trace) {
    const path = this.context;
    path.globalAlpha = alpha;
    path.strokeStyle = colour;
    path.lineWidth = width;
    path.beginPath();
    trace(path);
    path.stroke();
    path.globalAlpha = 1;
  }

  /** @param {string} string @param {number} x @param {number} y @param {TextStyle} style */
  text(string, x, y, { size = 13, colour, align = 'left', bold = false, turn = 0 }) {
    const { context } = this;
    context.save();
    context.translate(x, y);
    context.rotate((turn * Math.PI) / 180);
    context.font = `${bold ? 600 : 400} ${size}px ${FONT}`;
    context.fillStyle = colour;
    context.textAlign = align;
    context.textBaseline = 'middle';
    context.fillText(string, 0, 0);
    context.restore();
  }

  /**
   * Draw a part of an image, with sharp edges unless it is smooth.
   *
   * @param {HTMLCanvasElement} image
   * @param {number[]} part its corner and size in the picture
   * @param {number} x
   * @param {number} y
   * @param {number} width
   * @param {number} height
   * @param {{smooth?: boolean, alpha?: number}} [look]
   */
  picture(image, [sx, sy, sw, sh], x, y, width, height, { smooth = false, alpha = 1 } = {}) {
    this.context.imageSmoothingEnabled = smooth;
    this.context.globalAlpha = alpha;
    this.context.drawImage(image, sx, sy, sw, sh, x, y, width, height);
    this.context.globalAlpha = 1;
  }
}

/** Draws an SVG document. */
export class SvgSurface {
  /** @param {number} width @param {number} height */
  constructor(width, height) {
    /** @type {Element} */
    this.root = document.implementation.createDocument(SVG, 'svg').documentElement;
    this.#set(this.root, { width, height, viewBox: `0 0 ${width} ${height}`, 'font-family': FONT });
    this.parent = this.root;
    this.scale = 1;
  }

  /** @template {Element} T @param {T} node @param {Object<string, string|number|null>} attributes @returns {T} */
  #set(node, attributes) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null)
        node.setAttribute(name, typeof value === 'number' ? String(Math.round(value * 1000) / 1000) : value);
    }
    return node;
  }

  /** @param {string} tag @param {Object<string, string|number|null>} attributes */
  #add(tag, attributes) {
    const node = this.#set(this.root.ownerDocument.createElementNS(SVG, tag), attributes);
    this.parent.append(node);
    return node;
  }

  /** Draw with another origin. @param {number} x @param {number} y @param {() => void} draw */
  shifted(x, y, draw) {
    const before = this.parent;
    this.parent = this.#add('g', { transform: `translate(${x} ${y})` });
    draw();
    this.parent = before;
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {string} colour @param {number} [alpha] */
  rect(x, y, width, height, colour, alpha = 1) {
    this.#add('rect', { x, y, width, height, fill: colour, 'fill-opacity': alpha === 1 ? null : alpha });
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {string} colour */
  frame(x, y, width, height, colour) {
    this.#add('rect', {
      x: x + 0.5,
      y: y + 0.5,
      width: width - 1,
      height: height - 1,
      fill: 'none',
      stroke: colour,
    });
  }

  /** @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2 @param {string} colour @param {number} [width] */
  line(x1, y1, x2, y2, colour, width = 1) {
    this.#add('line', { x1, y1, x2, y2, stroke: colour, 'stroke-width': width });
  }

  /** @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2 @param {Stroke} stroke */
  curve(x1, y1, x2, y2, { colour, alpha, width }) {
    const middle = (x1 + x2) / 2;
    this.#add('path', {
      d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`,
      fill: 'none',
      stroke: colour,
      'stroke-opacity': alpha,
      'stroke-width': width,
    });
  }

  /** @param {string} string @param {number} x @param {number} y @param {TextStyle} style */
  text(string, x, y, { size = 13, colour, align = 'left', bold = false, turn = 0 }) {
    this.#add('text', {
      x,
      y,
      fill: colour,
      'font-size': size,
      'font-weight': bold ? 600 : null,
      'dominant-baseline': 'central',
      'text-anchor': { left: null, center: 'middle', right: 'end' }[align],
      transform: turn ? `rotate(${turn} ${x} ${y})` : null,
    }).textContent = string.replace(NOT_XML, '\uFFFD');
  }

  /**
   * Draw a part of an image, with sharp edges unless it is smooth.
   *
   * @param {HTMLCanvasElement} image
   * @param {number[]} part its corner and size in the picture
   * @param {number} x
   * @param {number} y
   * @param {number} width
   * @param {number} height
   * @param {{smooth?: boolean, alpha?: number}} [look]
   */
  picture(image, [sx, sy, sw, sh], x, y, width, height, { smooth = false, alpha = 1 } = {}) {
    const window = this.#add('svg', {
      x,
      y,
      width,
      height,
      viewBox: `${sx} ${sy} ${sw} ${sh}`,
      preserveAspectRatio: 'none',
    });
    window.append(
      this.#set(this.root.ownerDocument.createElementNS(SVG, 'image'), {
        x: 0,
        y: 0,
        width: image.width,
        height: image.height,
        href: image.toDataURL('image/png'),
        'image-rendering': smooth ? null : 'pixelated',
        opacity: alpha === 1 ? null : alpha,
        preserveAspectRatio: 'none',
      }),
    );
  }
}

/** @type {CanvasRenderingContext2D|null} */
let measuring = null;

/**
 * Return the width of a label in pixels.
 *
 * @param {string} label
 * @param {number} [size] of the text
 * @param {boolean} [bold]
 */
export function widthOf(label, size = 13, bold = false) {
  measuring ??= document.createElement('canvas').getContext('2d');
  if (!measuring) return label.length * size * 0.56;
  measuring.font = `${bold ? 600 : 400} ${size}px ${FONT}`;
  return measuring.measureText(label).width;
}

/**
 * Shorten a label that is wider than a number of pixels.
 *
 * @param {string} label
 * @param {number} pixels
 * @param {number} [size] of the text
 */
export function fit(label, pixels, size = 13) {
  const width = widthOf(label, size);
  if (width <= pixels) return label;
  const points = Array.from(label);
  const most = Math.max(1, Math.floor((points.length * pixels) / width) - 1);
  return `${points.slice(0, most).join('')}…`;
}
