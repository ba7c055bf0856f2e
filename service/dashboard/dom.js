/** Elements without markup: a string is always text. */

/**
 * @param {string} tag
 * @param {Object<string, any>} [properties] `class`, `data`, `on`, attributes with a dash or in
 *   `role`, `for`; all else are properties of the element
 * @param {...(Node|string|null)} children
 */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === 'class') node.className = value;
    else if (name === 'data') Object.assign(node.dataset, value);
    else if (name === 'on')
      for (const [type, listen] of Object.entries(value)) node.addEventListener(type, listen);
    else if (name.includes('-') || name === 'role' || name === 'for' || name === 'list')
      node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** @param {string} id */
export const byId = (id) => document.getElementById(id);

/**
 * A labelled `<select>`.
 *
 * @param {string} label
 * @param {{value: string, label: string}[]} options
 * @param {string} value
 * @param {(value: string) => void} onChange
 */
export function choice(label, options, value, onChange) {
  const select = element('select', { on: { change: () => onChange(select.value) } });
  setOptions(select, options, value);
  return { element: element('label', { class: 'choice' }, element('span', {}, label), select), select };
}

/** Replace a select's options only where they differ, so that focus and an open list survive. */
export function setOptions(select, options, value) {
  const same =
    select.options.length === options.length &&
    options.every(
      (option, i) => select.options[i].value === option.value && select.options[i].text === option.label,
    );
  if (!same) select.replaceChildren(...options.map((option) => new Option(option.label, option.value)));
  select.value = value;
}

/**
 * A canvas of so many CSS pixels, sharp on this screen.
 *
 * @returns {CanvasRenderingContext2D} scaled to CSS pixels, cleared
 */
export function sharpContext(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Run a drawing at most once a frame. */
export function oncePerFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}
